package host

import (
	"slices"
	"strings"
)

// passed are the variables that every plugin gets from the host's environment. All
// others, credentials first of all, stay with the host: what an agent may have of
// its caller's environment comes with each request, by name.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SHELL",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SUBSPAN_STATE_DIR", "SUBSPAN_CONFIG_DIR", "SUBSPAN_RUNTIME_DIR", "SUBSPAN_LOG",
	"GOMEMLIMIT", "GOTRACEBACK",
	// Windows programs do not start without these.
	"SYSTEMROOT", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "APPDATA", "LOCALAPPDATA",
}

var passedPrefixes = []string{"LC_", "XDG_"}

// Environment is what a plugin launched from the environment all may have: the
// allow-list, the names that its manifest asks for, which a person saw when trusting
// it, and what set adds.
func Environment(all, manifest, set []string) []string {
	var env []string
	for _, kv := range all {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || strings.HasPrefix(name, "PLUGIN_") {
			continue
		}
		if slices.Contains(passed, name) || slices.Contains(manifest, name) ||
			slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			env = append(env, kv)
		}
	}
	return append(env, set...)
}
