package main

import "slices"

// A step is one part of the check. The table of steps is below: it says what `make test` runs,
// in which order, and what only `make test-all` runs.
type step struct {
	name  string
	about string // what the step shows, for -list

	command  []string // the step is this command; or else it is go test of
	packages []string // these packages, as paths from the top of the module, in which ... is a wildcard;
	rest     bool     // or of all packages that no other step names
	run      string   // the tests to run, a pattern; all if it is empty
	skip     string   // the tests to leave out, a pattern
	except   []string // but not these
	without  []string // and none whose tests link a package with one of these in its path
	short    bool     // with -short
	race     bool     // with the race detector, and -short
	covers   float64  // the tests of each package must reach at least this many percent of its statements
	module   string   // the directory of the module, where it is not the main one

	minutes float64  // of wall time, on a machine of slowness 1 that runs other steps beside it
	builds  []string // the scripts that build what the tests need
	uses    []string // folders that the tests read or build, besides those of the packages that they link
	alone   bool     // nothing else runs beside the step
	first   bool     // the step belongs to the core, whose order is the table's
	all     bool     // only `make test-all` runs the step
}

// startEngines are parts of the paths of packages by which tests start engines, clusters or machines.
var startEngines = []string{"gvisor.dev/", "internal/testing/testengine", "internal/testing/testcluster", "machine/vm/qemu"}

// raced are the packages in which the most goroutines share state: the tables of processes and
// sandboxes, the streams, the layers that act for many callers, and what one caller takes over from another.
var raced = []string{
	"agent/conversation", "internal/duplex", "internal/gateway", "internal/mux", "internal/process", "layer/pool", "layer/registry", "layer/router", "layer/session",
	"provider/internal/remote", "provider/internal/supervised", "provider/mock", "server/api",
}

// serial are tests that compute for long in one goroutine, where there are no races to detect.
const serial = "^(TestMutants|TestHostileFiles|TestMessagesAreBounded|TestStreamedInputsAreBounded|TestLongHistory|TestReconcileWhenTheStoreFails)$"

// programs are the packages of the programs that tests of providers build and start.
var programs = []string{"cmd/atoll", "cmd/atoll-guest", "cmd/atoll-engine", "cmd/atoll-native", "cmd/atoll-kubernetes", "cmd/atoll-modal", "cmd/atoll-dagger", "cmd/atoll-provider-test"}

// manual are the folders of the manual and of the configuration of its site.
var manual = []string{"docs", "docs/.vitepress", "docs/.vitepress/theme", "docs/adr", "docs/providers", "docs/public", "docs/reference"}

// steps are the check, in the order of their value. The core comes first. If there is time for
// all, the longest of the others come next; or else those whose files changed since they last
// passed on this machine, then those that passed longest ago.
var steps = []step{
	{name: "lint", about: "gofmt, go vet, staticcheck, the types of macOS and Windows", command: []string{"make", "lint"}, minutes: 0.4, alone: true, first: true},
	{name: "build", about: "bin/atoll, as users build it", command: []string{"make", "build"}, minutes: 0.2, alone: true, first: true, uses: programs},
	{name: "readme", about: "the first command of README.md", packages: []string{"internal/testing/docs"}, run: "^TestFirstCommand$", minutes: 0.4, first: true, uses: programs},
	{name: "unit", about: "the packages that no other step names", rest: true, minutes: 1.8, builds: []string{"s3", "node", "debian"}, first: true},
	{name: "suite", about: "the conformance suite can fail, and its own tests", packages: []string{"provider/providertest"}, minutes: 1.6, first: true},
	{name: "mock", about: "the whole conformance suite on mock", packages: []string{"provider/mock"}, minutes: 0.5, first: true},
	{name: "local", about: "the whole conformance suite on local", packages: []string{"provider/local", "provider/internal/inprocess", "internal/process"}, minutes: 0.8, first: true},
	{name: "gvisor", about: "the whole conformance suite on gVisor", packages: []string{"provider/gvisor"}, run: "^TestConformance$", minutes: 5.2, builds: []string{"debian"}, uses: programs, first: true},
	{name: "native", about: "the whole conformance suite on native", packages: []string{"provider/native"}, run: "^TestConformance$", minutes: 3, builds: []string{"debian"}, uses: programs, first: true},
	{name: "wire", about: "the HTTP API, and the whole suite across it", packages: []string{"server/api/..."}, minutes: 1.4, builds: []string{"node"}, first: true},
	{name: "cases", about: "what users reported as broken, as they typed it", packages: []string{"cmd/atoll"}, run: "^TestCases$", minutes: 0.5, uses: programs, first: true},
	{name: "genkit", about: "the module for Genkit", module: "agent/genkit", packages: []string{"..."}, minutes: 0.1, first: true},
	{name: "docker", about: "the whole conformance suite on a Docker Engine", packages: []string{"provider/docker"}, run: "^TestConformance$", minutes: 6, builds: []string{"debian"}, uses: programs, first: true},

	{name: "gvisor-own", about: "the tests of gVisor alone", packages: []string{"provider/gvisor/..."}, skip: "^TestConformance$", minutes: 8.1, builds: []string{"debian"}, uses: programs},
	{name: "native-own", about: "the tests of native alone", packages: []string{"provider/native/..."}, skip: "^TestConformance$", minutes: 2.5, builds: []string{"debian"}, uses: programs},
	{name: "supervisor", about: "the processes that own sandboxes", packages: []string{"provider/internal/supervised/..."}, minutes: 1.3},
	{name: "docker-own", about: "the tests of docker alone", packages: []string{"provider/docker"}, skip: "^TestConformance$", minutes: 7.1, builds: []string{"debian"}, uses: programs},
	{name: "cli", about: "the command line, MCP and SSH by their clients", packages: []string{"cmd/...", "server/mcp", "server/sshd", "agent/tools/..."}, skip: "^TestCases$", minutes: 7.3, builds: []string{"node", "debian", "kube"}, uses: programs},
	{name: "docs", about: "the command blocks of README.md and of the manual, and its site", packages: []string{"internal/testing/docs", "packaging/site", "examples/..."}, skip: "^TestFirstCommand$", minutes: 6.5, builds: []string{"s3", "node"}, uses: slices.Concat(programs, manual)},
	{name: "layers", about: "audit, authz, limit, pool, registry, router, session, trace, workspace", packages: []string{"layer/..."}, minutes: 3.5},
	{name: "config", about: "a configuration file becomes a whole stack", packages: []string{"config/..."}, minutes: 1.4, builds: []string{"node", "bundle"}, uses: programs},
	{name: "agents", about: "conversations, their stores, and S3", packages: []string{"agent/conversation", "storage/store/...", "storage/objectstore/..."}, minutes: 3.5, builds: []string{"s3", "node"}},
	{name: "kubernetes", about: "the conformance suite on a cluster of Kubernetes", packages: []string{"provider/kubernetes"}, run: "^TestConformance$", minutes: 8, builds: []string{"debian", "kube"}, uses: programs},
	{name: "kubernetes-own", about: "the tests of kubernetes alone, and what deploy has for a cluster", packages: []string{"provider/kubernetes", "internal/testing/testcluster", "deploy/..."}, skip: "^TestConformance$", minutes: 12, builds: []string{"debian", "kube", "agent-sandbox"}, uses: programs},
	{name: "modal", about: "a server that speaks Modal's protocol", packages: []string{"provider/modal", "internal/testing/fakemodal"}, minutes: 7.6, builds: []string{"debian"}, uses: programs},
	{name: "dagger", about: "programs on a Dagger engine", packages: []string{"agent/jobs/dagger"}, minutes: 1.2, builds: []string{"dagger"}, uses: programs},
	{name: "microvm", about: "virtual machines", packages: []string{"provider/microvm/...", "machine/vm/...", "machine/image/bundle"}, minutes: 9.9, builds: []string{"debian", "bundle"}, uses: programs},
	{name: "vmdocker", about: "virtual machines with a Docker Engine", packages: []string{"provider/vmdocker"}, minutes: 7.8, builds: []string{"debian", "bundle"}, uses: programs},
	{name: "release", about: "the packages of a release, each installed", packages: []string{"packaging/release"}, minutes: 1.4, builds: []string{"debian"}, uses: slices.Concat(programs, []string{"packaging", "packaging/image", "packaging/tools"})},
	{name: "coverage", about: "what decides about the files of agents, and how much of it is tested", packages: []string{"agent/hooks", "agent/template", "storage/filesync"}, covers: 90, minutes: 1.8, builds: []string{"s3"}},
	{name: "race", about: "the race detector, where most goroutines meet", race: true, packages: raced, skip: serial, minutes: 6.3},
	{name: "race-genkit", about: "the race detector, on the module for Genkit", race: true, module: "agent/genkit", packages: []string{"..."}, minutes: 0.2},
	{name: "systems", about: "the programs for macOS and Windows", command: []string{"make", "systems"}, minutes: 9, all: true},
	{name: "race-others", about: "the race detector, on the other packages that start no engine", race: true, packages: []string{"..."}, except: raced, skip: serial, without: startEngines, minutes: 10, all: true},
	{name: "race-engines", about: "the race detector, on packages that start engines", race: true, packages: []string{"agent/jobs/dagger", "machine/image/bundle", "provider/docker", "provider/kubernetes", "provider/microvm", "provider/vmdocker", "machine/vm/..."}, without: []string{"gvisor.dev/"}, minutes: 15, all: true},
}
