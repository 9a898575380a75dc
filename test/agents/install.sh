#!/bin/sh
# Installs the pinned agents outside the clone, once for each state of the lock
# file, and prints the folder of their programs as the last line.
#
#   SUBSPAN_AGENTS_DIR   where (default ${XDG_CACHE_HOME:-~/.cache}/subspan/agents)
#
# To pin other versions: edit package.json, then
#   npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved
# which leaves no registry's address in the lock file. Where a registry lacks the
# packages of another platform, npm leaves them out and npm ci refuses the result:
# such an entry is written by hand, with its version, os, cpu and no integrity.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${SUBSPAN_AGENTS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/subspan/agents}
for tool in node npm; do
	command -v $tool >/dev/null || { echo "install.sh: $tool is missing: install Node.js 20 or newer" >&2; exit 1; }
done
# package agents computes the same name
key=$(node -p 'crypto.createHash("sha256").update(fs.readFileSync(process.argv[1])).digest("hex").slice(0, 16)' "$here/package-lock.json")
dir=$root/$key

if [ ! -d "$dir" ]; then
	mkdir -p "$root"
	new=$(mktemp -d "$root/.new.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	trap 'exit 1' HUP INT TERM
	cp "$here/package.json" "$here/package-lock.json" "$new"
	(cd "$new" && npm ci --ignore-scripts --no-audit --no-fund --prefer-offline --loglevel=error) >&2

	# Of the packages' own scripts only those run that put a native program in its
	# place. They get a home of their own: one of them writes into it.
	mkdir "$new/home" "$new/home/tmp"
	script() {
		(cd "$new/node_modules/$1" && env -i PATH="$PATH" HOME="$new/home" GROK_HOME="$new/home" TMPDIR="$new/home/tmp" \
			npm_config_user_agent=npm/ node "$2") >&2
	}
	script @anthropic-ai/claude-code install.cjs
	script opencode-ai postinstall.mjs
	script @xai-official/grok bin/postinstall.js
	for agent in claude codex grok opencode gemini qwen; do
		printf '%s answers ' $agent >&2
		env -i PATH="$PATH" HOME="$new/home" TMPDIR="$new/home/tmp" DISABLE_AUTOUPDATER=1 GROK_DISABLE_AUTOUPDATER=1 \
			"$new/node_modules/.bin/$agent" --version </dev/null >&2
	done
	rm -rf "$new/home"
	# mktemp makes a private folder; other users of the machine may run what is in it
	chmod 755 "$new"
	# Rename fails when another run was faster; its result is as good.
	node -e 'try { fs.renameSync(...process.argv.slice(1)) } catch (e) { if (!fs.existsSync(process.argv[2])) throw e }' "$new" "$dir"
fi

node -e '
const { dependencies } = require(process.argv[1] + "/package.json")
for (const name of Object.keys(dependencies))
  console.log(name, require(`${process.argv[1]}/node_modules/${name}/package.json`).version)
' "$dir"
echo "$dir/node_modules/.bin"
