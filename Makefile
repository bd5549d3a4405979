# Atoll. `make help` lists the verbs.

# gVisor needs a statically linked binary: with cgo its sentry dies at start.
export CGO_ENABLED = 0

GO  := go

# Without the paths of this machine in them, all builds share what the cache has compiled: those of
# other clones, of the guest, and of the image.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath

.PHONY: help
help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What few need are programs of their own, which atoll finds beside it or in PATH.
PLUGINS := kubernetes modal dagger provider-test
BIN     := bin
# atoll version tells the commit, wherever git can, and gVisor's version, which the client does not link.
BUILD   := -buildvcs=$(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
BUILD   += -ldflags='-s -w -X main.gvisorVersion=$(shell $(GO) list -m -f {{.Version}} gvisor.dev/gvisor)'
FULL    := -tags embedguest,embedengine
# Windows cannot replace a program with another one, so atoll.exe is the whole program.
CLIENT  := $(if $(filter windows,$(shell $(GO) env GOOS)),$(FULL),-tags client)

# The programs, in a directory: the client, its server, the plugins.
define programs
	@$(GO) build $(BUILD) $(FULL) -o $(1)/atoll-server ./cmd/atoll
	@$(GO) build $(BUILD) $(CLIENT) -o $(1)/ ./cmd/atoll
	@$(GO) build $(BUILD) $(FULL) -o $(1)/ $(PLUGINS:%=./cmd/atoll-%)
endef

.PHONY: build
build: embedded ## build bin/atoll, its server and the programs of its plugins, statically linked, with the guest and the engines in them
	$(call programs,$(BIN))

.PHONY: guest
guest: ## build bin/atoll-guest, which providers put into sandboxes
	@GOOS=linux $(GO) build -buildvcs=false -ldflags='-s -w' -o $(BIN)/atoll-guest ./cmd/atoll-guest

# Seccomp programs of gVisor for the architecture of this machine. Programs of another one ignore them.
FILTERS := provider/gvisor/internal/runsc/filters.json

.PHONY: engine
engine: ## on Linux, build bin/atoll-engine and bin/atoll-native, which run the sandboxes of gVisor and of native
ifeq ($(shell $(GO) env GOOS),linux)
	@GOARCH= $(GO) run ./provider/gvisor/internal/filters/generate > $(FILTERS).$$$$ && mv $(FILTERS).$$$$ $(FILTERS) || { rm -f $(FILTERS).$$$$; exit 1; }
	@$(GO) build -tags embedfilters -buildvcs=false -ldflags='-s -w' -o $(BIN)/ ./cmd/atoll-engine ./cmd/atoll-native
endif

.PHONY: embedded
embedded: guest engine # compress what build puts into atoll
	@$(GO) run ./packaging/compress $(BIN)/atoll-guest internal/guestprogram/atoll-guest.zst
ifeq ($(shell $(GO) env GOOS),linux)
	@$(GO) run ./packaging/compress -sum $(BIN)/atoll-engine internal/engineprogram/atoll-engine.zst
	@$(GO) run ./packaging/compress -sum $(BIN)/atoll-native internal/engineprogram/atoll-native.zst
endif

.PHONY: install
install: embedded ## build the same programs into Go's bin directory
	$(call programs,$(or $(shell $(GO) env GOBIN),$(shell $(GO) env GOPATH)/bin))

.PHONY: image
image: ## build the server's image in bin/image, without Docker; PUSH=REGISTRY/NAME:TAG pushes it
	@$(GO) run ./packaging/image $(if $(PUSH),-push $(PUSH))

.PHONY: release
release: ## build the files of the release VERSION=v1.2.3 in bin/release: archives, packages, the image, checksums
	@: $(or $(VERSION),$(error name the version: make release VERSION=v1.2.3))
	@$(MAKE) --no-print-directory man
	@$(GO) run ./packaging/release -version "$(VERSION)" -man $(BIN)/man

.PHONY: docs
docs: ## build the manual as a site in bin/docs, with Node.js; DOCS_PATH=/atoll/ if that is its path on the server
	@$(GO) run ./packaging/site $(if $(DOCS_PATH),-path $(DOCS_PATH))

.PHONY: test
test: ## install what the tests need, run all steps of internal/testing/check/steps.go, or STEPS="docker cli"; CHECK_MINUTES limits the time, PROMISES=FILE gets a table of the suite
	@$(GO) run ./internal/testing/check $(if $(PROMISES),-promises $(PROMISES)) $(STEPS)

.PHONY: test-all
test-all: ## the same, with the long steps and the long parts of the others
	@$(GO) run ./internal/testing/check -all $(STEPS)

.PHONY: test-cases
test-cases: ## run what users reported as broken, as they typed it
	@$(GO) run ./internal/testing/check cases

.PHONY: test-times
test-times: ## print the CPU and wall seconds of each package and group, measured one after the other
	@$(GO) run ./internal/testing/check -times $(STEPS)

.PHONY: check
check: ## gofmt, vet, staticcheck and the quick tests of what changed since main, or since BASE, in 3 minutes
	@$(GO) run ./internal/testing/check quick $(if $(BASE),-base $(BASE))

.PHONY: stress
stress: ## run the tests RUN of PKG N (20) times on busy CPUs, and print how often they fail
	@$(GO) run ./internal/testing/check stress -pkg $(or $(PKG),"") -run "$(RUN)" -n $(or $(N),20)

.PHONY: short
short: ## the quick tests only, with nothing installed
	@$(GO) test -short ./...
	@cd agent/genkit && $(GO) test -short ./...

.PHONY: race
race: ## the race detector over everything that does not embed gVisor
	@$(GO) run ./internal/testing/check race race-others race-engines race-genkit

.PHONY: cover
cover: ## how much of some packages their tests reach, and that it is enough
	@$(GO) run ./internal/testing/check coverage

# Trade memory for CPU: the collector is a third of staticcheck's work.
lint: export GOGC = 400
lint: export GOMEMLIMIT = 4GiB
.PHONY: lint
lint: ## gofmt, go vet, staticcheck, habits of writing, and the types of macOS and Windows
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	@$(GO) vet ./...
	@cd agent/genkit && $(GO) vet ./...
	@$(GO) tool staticcheck ./...
	@$(GO) run ./internal/testing/check prose
	@$(GO) tool staticcheck -tags client -tests=false -checks inherit,-U1000 ./cmd/atoll
	@staticcheck=$$($(GO) tool -n staticcheck) && cd agent/genkit && $$staticcheck ./...
	@$(GO) run ./internal/testing/check systems darwin windows

.PHONY: systems
systems: ## build the programs for macOS and Windows, and throw them away
	@for system in darwin windows; do echo "for $$system" && GOOS=$$system $(GO) build -o /dev/null ./cmd/atoll $(PLUGINS:%=./cmd/atoll-%) || exit 1; done
	@GOOS=darwin $(GO) build -tags client -o /dev/null ./cmd/atoll

.PHONY: golden
golden: ## write the golden files anew: the table of providers, the reference, help texts, tools, events, descriptions of the API
	@$(GO) test ./internal/testing/docs ./config ./cmd/atoll ./agent/tools ./agent/output ./server/openapi ./provider/native/internal/seccomp -update

.PHONY: man
man: ## write the man pages of all commands into bin/man
	@$(GO) test ./cmd/atoll -run TestManPages -man $(abspath $(BIN))/man

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (10s)
	@./scripts/fuzz $(or $(FUZZTIME),10s)

.PHONY: bench
bench: ## measure against runsc, docker, bwrap, rclone and s5cmd; writes bench/RESULTS.md
	@./scripts/bench

.PHONY: bench-compare
bench-compare: ## measure the commit BASE and the working tree in turns; more than 1.10 x slower is a regression
	@./scripts/bench-compare $(BASE)

VFKIT = $(shell command -v vfkit)

.PHONY: sign
sign: ## on macOS: let vfkit (VFKIT=PATH), of which machines there are made, use the hypervisor
	@test -n "$(VFKIT)" || { echo 'there is no vfkit: brew install vfkit, or make sign VFKIT=PATH'; exit 1; }
	codesign --force --entitlements packaging/vz.entitlements --sign - "$(VFKIT)"

.PHONY: clean
clean: ## remove what was built
	rm -rf bin internal/guestprogram/atoll-guest.zst internal/engineprogram/atoll-engine.* internal/engineprogram/atoll-native.* $(FILTERS)
