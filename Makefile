# Everything here needs Go and make and nothing else; `agents` and `test-agents`
# also need npm.
GO      ?= go
BIN     := bin/subspan
TOOL    := $(GO) tool -modfile=tools/go.mod
# The race detector needs a C compiler; where there is none, the tests run without.
RACE    := $(if $(shell command -v $$($(GO) env CC)),-race)
PKGS    := ./...
TASK    ?= map this repository
AGENT   ?=
# Where the pinned agents are; outside the clone, so that a new one costs seconds.
export SUBSPAN_AGENTS_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/subspan/agents

.PHONY: run build test check cross agents test-agents matrix generate lint-proto clean

## run: build, and hand a task to an agent: make run [AGENT=opencode] [TASK="..."]
run: build
	@./$(BIN) run $(if $(AGENT),--agent $(AGENT)) "$(TASK)"

build:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/subspan

## test: the whole suite, with the race detector
test:
	@$(if $(RACE),,echo 'no C compiler: testing without the race detector')
	$(GO) test $(RACE) -timeout 6m $(PKGS)

## check: format, vet on three systems, static analysis, schema, generated files
check: cross lint-proto
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt on these files'; exit 1; }
	$(GO) vet $(PKGS)
	$(TOOL) staticcheck $(PKGS)
	$(GO) mod tidy -diff
	$(MAKE) generate
	@git diff --exit-code --stat -- proto roles || { echo 'generated files are not up to date: run make generate and commit'; exit 1; }

## cross: what cannot be run here is at least built and vetted
cross:
	GOOS=darwin GOARCH=arm64 $(GO) build ./... && GOOS=darwin GOARCH=arm64 $(GO) vet $(PKGS)
	GOOS=windows GOARCH=amd64 $(GO) build ./... && GOOS=windows GOARCH=amd64 $(GO) vet $(PKGS)

## agents: install the pinned agent CLIs into a cache outside this folder
agents:
	@test/agents/install.sh

## test-agents: run the suites that drive the real CLIs
test-agents: build
	@test/agents/install.sh
	SUBSPAN_AGENTS=1 $(GO) test -count=1 -timeout 20m -run '^TestReal' ./test/agents ./test/agents/opencode ./bridges/...

## matrix: run every behaviour on every real agent and write test/agents/MATRIX.md
matrix: build
	@test/agents/install.sh
	SUBSPAN_AGENTS=1 $(GO) test -count=1 -timeout 30m -run TestRealMatrix ./test/agents/matrix -args -matrix $(CURDIR)/bin/matrix.json; \
	status=$$?; $(GO) run ./test/agents/matrix/cmd bin/matrix.json > test/agents/MATRIX.md && exit $$status

## generate: write the generated files again; needs no network once modules are there
generate:
	cd proto && $(GO) tool -modfile=../tools/go.mod buf generate
	$(GO) generate ./roles

## lint-proto: style of the schema, and changes that would break what was released
lint-proto:
	cd proto && $(GO) tool -modfile=../tools/go.mod buf lint
	cd proto && $(GO) tool -modfile=../tools/go.mod buf breaking --against baseline.binpb

clean:
	rm -rf bin dist
