package atoll_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/seed46cd37a8/atoll"

// rooms says which packages of this repository each of its packages may import
// besides the root, and why. A package that is not listed fails the test, and
// so does an import that is allowed and not used.
var rooms = map[string]map[string]string{
	".": {},

	"internal/awsclient": {},
	"internal/cgroup":    {},
	"internal/kept": {
		"internal/sweeper":       "what falls due",
		"api":                    "it is the client of its keepers",
		"internal/cgroup":        "limits that the host enforces",
		"internal/disk":          "records of snapshots, the lock of a creation",
		"internal/hub":           "its Watch",
		"internal/kept/files":    "the work directory of a stopped sandbox",
		"internal/kept/keeper":   "what it starts, and the jobs it gives",
		"internal/kept/statedir": "where state lives",
		"internal/passwd":        "which users are root",
		"internal/via":           "the use of files is noted",
		"internal/volume":        "which volumes can be mounted",
	},
	"internal/kept/files": {"internal/dirfs": "directories of the host"},
	"internal/kept/keeper": {
		"api":                    "a keeper serves the API of its sandbox",
		"internal/cgroup":        "usage, and what ran out of memory",
		"internal/idle":          "when it was last used",
		"internal/kept/statedir": "its sandbox's record and locks",
		"internal/process":       "main processes that have ended",
		"internal/socket":        "on which it gets its job, and the one it serves",
	},
	"internal/kept/statedir": {
		"internal/disk":   "records, locks, removals",
		"internal/volume": "volumes",
	},
	"internal/process": {"internal/disk": "files of processes that have ended"},
	"internal/dirfs":   {"internal/via": "a directory is opened for each call that is confined to it"},
	"internal/disk":    {},
	"internal/hub":     {},
	"internal/idle":    {},
	"internal/keyed":   {},
	"internal/lasting": {
		"internal/dirfs":   "what is on volumes",
		"internal/process": "main processes that have ended",
		"internal/via":     "files that are reached through the guest",
		"internal/volume":  "volumes, of which a caretaker has the files",
	},
	"internal/line":      {},
	"internal/nearest":   {},
	"internal/socket":    {},
	"internal/steps":     {},
	"internal/sweeper":   {},
	"internal/passwd":    {},
	"internal/via":       {},
	"internal/visit":     {},
	"internal/spawn":     {"internal/process": "processes of this machine are its processes"},
	"internal/volume":    {"internal/disk": "locks, and the removal of what programs made"},
	"internal/ranges":    {},
	"internal/terminal":  {},
	"internal/usernet":   {"internal/ranges": "addresses that are not what they look like"},
	"internal/check":     {},
	"internal/testmodel": {},
	"internal/testsession": {
		"provider/local": "whose sandboxes they are",
		"session":        "whose sessions",
		"store":          "where they are written",
	},
	"internal/testagent": {},
	"internal/testenv":   {},
	"internal/teststore": {
		"internal/testenv": "where the server of PostgreSQL is",
		"store":            "what tests run over",
		"store/postgres":   "and what they run over once more",
	},
	"internal/tests3":    {"internal/testenv": "where the servers are"},
	"internal/hostile":   {},
	"internal/testimage": {"internal/testenv": "a static busybox to put into images"},
	"internal/life": {
		"internal/dirfs":   "files of a sandbox that is a directory",
		"internal/disk":    "its records and their locks",
		"internal/hub":     "its Watch",
		"internal/process": "its processes",
		"internal/via":     "files are opened for each call",
		"internal/volume":  "its volumes",
	},
	"internal/testagent/agenttest": {},

	"internal/treetar": {},

	"image": {
		"internal/treetar": "images are saved as archives",
		"internal/disk":    "the removal of root file systems",
		"internal/ranges":  "what no registry may send it to",
	},
	"image/bundle": {
		"internal/disk":    "locks, files replaced as a whole, removals",
		"internal/treetar": "the files of an image become a disk",
		"vm":               "what guests are told to run",
	},
	"bucket": {"internal/disk": "locks between programs, and what a full disk says"},
	"bucket/s3": {
		"bucket":             "whose promises it keeps",
		"internal/awsclient": "how it asks a service",
	},
	"statesync": {"bucket": "where versions are"},
	"bucket/buckettest": {
		"bucket":           "whose promises it checks",
		"internal/testenv": "how slow the machine is",
	},

	"vm": {"internal/disk": "locks, and files replaced as a whole"},
	"vm/vmtest": {
		"api":              "the guest's sandbox is asked",
		"guest":            "what is in the machines",
		"internal/testenv": "how slow the machine is",
		"vm":               "whose promises it checks",
	},
	"vm/qemu": {
		"vm/internal/child": "its processes end with it",
		"internal/disk":     "what was found out is written down",
		"internal/line":     "one serial port carries all connections",
		"internal/socket":   "the ends of which QEMU is given one",
		"vm":                "whose machines they are",
	},
	"vm/internal/child": {"vm": "where consoles are"},
	"vm/vz": {
		"vm":                "whose driver it is",
		"vm/internal/child": "the process of a machine, and its console",
	},
	"vm/wsl2": {
		"internal/disk":     "who has a directory that stays, and what is in it",
		"internal/line":     "its guest is reached over one stream",
		"vm":                "whose driver it is",
		"vm/internal/child": "the process of that stream",
	},
	"internal/testcluster": {
		"internal/testenv":   "what it is made of",
		"internal/testimage": "the images of its pods",
	},
	"internal/testcluster/kube":             {},
	"internal/testengine/dagger/distconsts": {},
	"internal/testengine": {
		"internal/testenv":   "what it is made of",
		"internal/testimage": "the images of its containers",
	},
	"plugin": {
		"api":                "what its programs speak",
		"internal/secretref": "settings that are secrets",
	},
	"internal/secretref":           {},
	"internal/guestprogram":        {},
	"provider/kubernetes/settings": {},
	"provider/modal/settings":      {"internal/secretref": "the token"},
	"compute/dagger/settings":      {},
	"compute/remote": {
		"api":     "errors as that has them on the wire",
		"compute": "whose backend it carries",
	},
	"provider/kubernetes": {
		"plugin":                       "it is a program of its own",
		"provider/kubernetes/settings": "what a configuration says",
		"guest":                        "what is in its pods",
		"internal/hub":                 "its Watch",
		"internal/keyed":               "one at a time works on a sandbox",
		"internal/lasting":             "processes and files whose guest has gone",
		"internal/steps":               "what a creation takes, one after the other",
		"internal/sweeper":             "what falls due",
		"internal/visit":               "one connection to a guest for all",
		"internal/volume":              "names of data volumes, and the removal of projects",
	},
	"provider/modal": {
		"internal/secretref":      "files that people write are bounded",
		"internal/guestprogram":   "the program of its sandboxes",
		"plugin":                  "it is a program of its own",
		"provider/modal/settings": "what a configuration says",
		"guest":                   "what is in its sandboxes",
		"internal/hub":            "its Watch",
		"internal/keyed":          "one at a time works on a sandbox",
		"internal/lasting":        "processes and files whose guest has gone",
		"internal/steps":          "what a creation takes, one after the other",
		"internal/sweeper":        "what falls due",
		"internal/visit":          "one connection to a guest for all",
		"internal/volume":         "names of data volumes, and the removal of projects",
	},
	"internal/fakewsl": {
		"internal/disk":    "its distributions, written down as a whole",
		"internal/testenv": "how slow the machine is",
	},
	"internal/fakemodal": {
		"internal/disk":    "the removal of what programs made in volumes",
		"internal/testenv": "how slow the machine is",
	},
	"internal/fakevmm": {
		"internal/testenv": "how slow the machine is",
		"guest":            "which its sockets lead to where there is no machine",
		"internal/dirfs":   "the files that it serves then",
		"vm":               "what machines are",
		"vm/qemu":          "which makes its machines where there are any",
	},
	"vm/firecracker": {
		"internal/line":     "how a port is asked for on its vsock",
		"vm":                "whose driver it is",
		"vm/internal/child": "its process",
	},
	"dialect":     {},
	"trace":       {},
	"limit":       {},
	"access":      {"store": "where keys are"},
	"audit":       {"store": "where events are"},
	"router":      {},
	"workspace":   {"internal/disk": "records, locks, removals"},
	"secret":      {},
	"frontmatter": {},
	"lifecycle":   {},
	"template": {
		"internal/nearest": "what was meant by a key, or by the name of a template",
		"lifecycle":        "what is done in its sandboxes when",
	},
	"conversation": {
		"bucket":         "the history of turns is beside the versions of files",
		"dialect":        "what agents print",
		"internal/keyed": "one at a time works on a sandbox",
		"lifecycle":      "the hooks of templates",
		"statesync":      "versions of files",
		"store":          "where it writes",
		"template":       "what sandboxes and agents are made from",
	},
	"pool": {
		"internal/keyed": "one at a time gives a name away",
		"store":          "where it writes",
	},
	"session": {
		"internal/idle":  "when a sandbox was last used",
		"internal/keyed": "one at a time works on a session",
		"internal/via":   "the use of files is noted",
		"store":          "where it writes",
	},
	"compute": {},
	"compute/computetest": {
		"compute":          "whose promises it checks",
		"internal/testenv": "how slow the machine is",
	},
	"compute/dagger": {
		"compute/dagger/settings": "what a configuration says",
		"compute/remote":          "how it is reached",
		"internal/guestprogram":   "what its containers run",
		"plugin":                  "it is a program of its own",
		"compute":                 "whose backend it is",
		"frontmatter":             "which images no engine can pull",
		"guest":                   "what its containers run",
		"internal/disk":           "the guest's program, replaced as a whole, and locks of jobs",
	},
	"tool": {
		"compute":        "what runs the programs of sandbox_run",
		"frontmatter":    "what the agent's file says",
		"internal/keyed": "one at a time changes a file",
	},
	"mcp": {"tool": "what it shows"},
	"ledger": {
		"internal/keyed": "one at a time works on a record",
		"secret":         "what it keeps for each sandbox",
		"store":          "where it writes",
	},
	"store": {"internal/disk": "who holds a record has a lock"},
	"store/storetest": {
		"store":            "whose promises it checks",
		"internal/testenv": "how slow the machine is",
	},
	"store/dynamo": {
		"internal/awsclient": "how it asks a service",
		"store":              "whose promises it keeps",
	},
	"store/postgres": {"store": "whose tables it has"},
	"api": {
		"internal/disk":     "the token in a file",
		"internal/socket":   "sockets with long paths",
		"internal/terminal": "what becomes of a terminal without a client",
	},
	"sshd": {
		"internal/disk":     "the host key, and who may change the authorized ones",
		"internal/terminal": "what becomes of a terminal without a client",
	},
	"api/openapi": {"api": "what it describes"},
	"guest": {
		"compute":          "what it does with a job",
		"api":              "what a guest serves is the API",
		"internal/dirfs":   "files of the system it runs in",
		"internal/idle":    "when it was last used",
		"internal/line":    "one connection carries many requests",
		"internal/passwd":  "users of that system",
		"internal/process": "its processes",
		"internal/socket":  "who connects to it, and what a process inherits",
		"internal/spawn":   "how they are started, and ended",
		"internal/treetar": "programs of a machine that stays are replaced",
		"internal/via":     "its files are served by another process",
		"vm":               "ports of virtual machines",
	},

	"provider/local": {
		"internal/life":    "the life of sandboxes, shared with mock",
		"internal/process": "host processes are its processes",
		"internal/spawn":   "how they are started, and ended",
	},
	"provider/mock": {
		"internal/life":    "the life of sandboxes, shared with local",
		"internal/process": "scripted processes are its processes",
	},
	"provider/docker": {
		"guest":            "what runs in its containers",
		"internal/dirfs":   "which names are on volumes",
		"internal/disk":    "locks, and records of images",
		"internal/hub":     "its Watch",
		"internal/lasting": "main processes are known when their guest has gone",
		"internal/passwd":  "whose the work directory is where there is no guest",
		"internal/process": "main processes that have ended, and all processes where there is no guest",
		"internal/spawn":   "marks of processes, by which descendants are found",
		"internal/socket":  "which process the engine is",
		"internal/steps":   "what a creation takes, one after the other",
		"internal/sweeper": "what falls due",
		"internal/via":     "files are served by guests",
		"internal/visit":   "one connection to a guest serves all calls",
		"internal/volume":  "names of volumes",
	},
	"provider/vmdocker": {
		"internal/disk":   "notes of sandboxes, replaced as a whole, and the removal of a project's",
		"internal/hub":    "its Watch",
		"internal/keyed":  "one at a time starts the machine of a project",
		"internal/via":    "files are reached through a machine that is started for them",
		"provider/docker": "the engines in its machines",
		"vm":              "how large machines are, and the port of an engine",
	},
	"provider/gvisor": {
		"image":                           "images become root file systems",
		"internal/cgroup":                 "limits that the host enforces",
		"internal/kept":                   "its sandboxes have keepers",
		"internal/kept/keeper":            "the jobs it completes",
		"internal/kept/statedir":          "what a record says of an image",
		"internal/passwd":                 "which users are root",
		"provider/gvisor/internal/runsc":  "so that every importer can serve as sentry and gofer",
		"provider/gvisor/internal/sentry": "what is gVisor's in its keepers",
	},
	"provider/gvisor/internal/sentry": {
		"guest":                          "reaches the files that only the sandbox sees",
		"internal/dirfs":                 "what the guest shows",
		"internal/kept/files":            "the files that only the sandbox sees, by name",
		"internal/kept/keeper":           "whose engine it is",
		"internal/kept/statedir":         "where the data volume is",
		"internal/passwd":                "users of the sandbox",
		"internal/process":               "its processes",
		"internal/socket":                "what its guest inherits",
		"internal/usernet":               "its network",
		"provider/gvisor/internal/upper": "what a stop keeps of the root file system",
	},
	"provider/gvisor/internal/runsc": {},
	"provider/gvisor/internal/upper": {},

	"providertest": {
		"secret":           "what a sandbox has of its secret is checked",
		"internal/testenv": "how slow the machine is",
	},

	"provider/microvm": {
		"image/bundle":                   "what machines boot",
		"internal/cgroup":                "limits that the host enforces",
		"internal/kept":                  "its sandboxes have keepers",
		"internal/kept/keeper":           "the jobs it completes",
		"internal/kept/statedir":         "what a record says of an image",
		"provider/microvm/internal/hull": "what is a machine's in its keepers",
		"vm":                             "how large machines can be",
		"vm/firecracker":                 "how its machines are jailed",
	},
	"provider/microvm/internal/hull": {
		"api":                  "what the guest serves is the API",
		"guest":                "what it is told",
		"image/bundle":         "where a root archive has the guest",
		"internal/disk":        "the removal of what machines keep",
		"internal/kept/keeper": "whose engine it is",
		"internal/process":     "what is left of the main process",
		"internal/socket":      "the ends of its network",
		"internal/usernet":     "its network",
		"internal/via":         "files are served by the guest",
		"vm":                   "what machines are",
		"vm/firecracker":       "what runs them",
		"vm/qemu":              "or this",
		"vm/vz":                "or this, on macOS",
		"vm/wsl2":              "or this, on Windows",
	},
	"config": {
		"compute":                      "what is behind sandbox_run",
		"compute/dagger/settings":      "the settings of a program of its own",
		"compute/remote":               "the one that is no provider",
		"internal/guestprogram":        "what providers put into sandboxes",
		"internal/secretref":           "settings that are secrets",
		"plugin":                       "providers that are programs of their own",
		"provider/kubernetes/settings": "the settings of a program of its own",
		"provider/modal/settings":      "the settings of a program of its own",
		"api":                          "which URLs of servers a client takes",
		"audit":                        "around that, and who has done what",
		"access":                       "around all, and the keys of callers",
		"conversation":                 "what a server keeps of agents",
		"lifecycle":                    "what runs hooks",
		"bucket":                       "directories that are object storage",
		"bucket/s3":                    "and services that are",
		"frontmatter":                  "what the images stand for that agents name",
		"image":                        "the options of its store",
		"image/bundle":                 "what virtual machines boot",
		"ledger":                       "what is written down of sandboxes",
		"provider/docker":              "config alone knows all providers",
		"provider/gvisor":              "config alone knows all providers",
		"provider/local":               "config alone knows all providers",
		"provider/microvm":             "config alone knows all providers",
		"provider/mock":                "config alone knows all providers",
		"limit":                        "around each provider",
		"pool":                         "around each provider",
		"session":                      "around all providers",
		"statesync":                    "where versions of directories are kept",
		"store":                        "where ledger and sessions write",
		"template":                     "the directory of templates",
		"store/dynamo":                 "where conversations can be",
		"store/postgres":               "where all can be that is written down",
		"router":                       "one provider of all that are configured",
		"tool":                         "the options of the tools of agents",
		"trace":                        "the layer around every provider",
		"vm/firecracker":               "whether its machines work here, and how they are jailed",
		"vm/qemu":                      "whether its machines work here",
		"vm/vz":                        "whether its machines work here",
		"vm/wsl2":                      "whether its machines work here",
		"workspace":                    "around all providers",
		"provider/vmdocker":            "config alone knows all providers",
		"vm":                           "how large machines of projects are",

		"internal/disk":    "the note that the default provider works, the id of a state directory",
		"internal/nearest": "what was meant by a key",
	},
	"genkit": {
		"frontmatter": "agent files",
		"tool":        "what it shows",
	},
	"cmd/atoll": {
		"api/openapi":    "the pages that serve shows",
		"api":            "the CLI is a client, and the server",
		"config":         "what it runs on",
		"frontmatter":    "the file of the agent that atoll mcp serves",
		"image/bundle":   "atoll image build and pull",
		"internal/dirfs": "the local side of cp",
		"plugin":         "what doctor says of a program that is missing",
		"mcp":            "atoll mcp, and /mcp of serve",
		"sshd":           "serve answers SSH too",
		"statesync":      "what sync does",
		"tool":           "what mcp shows",
		"trace":          "the metrics that serve shows",
	},
	"packaging/compress": {},
	"packaging/image":    {},
	"cmd/atoll-kubernetes": {
		"plugin":              "what its main function is",
		"provider/kubernetes": "what it serves",
	},
	"cmd/atoll-provider-test": {
		"plugin":       "what it tests",
		"providertest": "the suite",
	},
	"cmd/atoll-modal": {
		"plugin":         "what its main function is",
		"provider/modal": "what it serves",
	},
	"cmd/atoll-dagger": {
		"compute/dagger": "what it serves",
		"plugin":         "what its main function is",
	},
	"cmd/atoll-guest": {"guest": "it is the program of that"},
	"bench": {
		"api": "what is measured goes through the API", "bucket/s3": "memory is measured inside", "internal/dirfs": "memory is measured inside",
		"statesync": "memory is measured inside", "image/bundle": "what a bare machine boots", "internal/line": "its guest is greeted",
	},
	"bench/runsc":       {},
	"examples/library":  {"provider/gvisor": "what it shows"},
	"examples/workflow": {},
}

// guests says why each module of others is here, and which packages may use it;
// nil means all but the root. Tests may use more.
var guests = map[string]struct {
	why string
	in  []string
}{
	"github.com/aws/aws-sdk-go-v2":            {"how AWS's services are asked, and where their credentials are", []string{"bucket/s3", "internal/awsclient", "store/dynamo"}},
	"github.com/aws/smithy-go":                {"errors of those clients", []string{"bucket/s3", "internal/awsclient", "store/dynamo"}},
	"github.com/coder/websocket":              {"streams over HTTP, and over that of Kubernetes", []string{"api", "provider/kubernetes"}},
	"dagger.io/dagger":                        {"Dagger's own SDK", []string{"compute/dagger"}},
	"github.com/danielgtaylor/huma":           {"OpenAPI made from the code", []string{"api/openapi"}},
	"github.com/containerd/errdefs":           {"kinds of the engine's errors", []string{"provider/docker"}},
	"github.com/distribution/reference":       {"names of images as the engine spells them", []string{"provider/docker"}},
	"github.com/modelcontextprotocol/go-sdk":  {"the protocol, on streams and HTTP", []string{"bench", "examples/workflow", "mcp"}},
	"github.com/moby/moby":                    {"the official client of Docker Engines", []string{"internal/testengine", "provider/docker"}},
	"github.com/creack/pty":                   {"terminals on every Unix", []string{"internal/process", "internal/spawn"}},
	"github.com/firebase/genkit/go":           {"agents on Genkit; a module of its own keeps it out of this one", []string{"genkit"}},
	"github.com/fsnotify/fsnotify":            {"one watch on a directory sees all changes of records", []string{"internal/kept", "provider/vmdocker"}},
	"github.com/go-git/go-git":                {"rules in the syntax of gitignore", []string{"statesync"}},
	"github.com/google/jsonschema-go":         {"schemas of what tools take and give, as MCP has them", []string{"genkit", "tool"}},
	"github.com/google/go-containerregistry":  {"OCI images and registries", []string{"image", "internal/fakemodal", "internal/testcluster", "internal/testengine", "internal/testimage", "packaging/image", "provider/docker", "provider/modal"}},
	"github.com/hashicorp/yamux":              {"many connections over one stream", []string{"internal/line"}},
	"github.com/klauspost/compress":           {"layers and the embedded guest in zstd, gzip twice as fast", []string{"image", "image/bundle", "internal/guestprogram", "packaging/compress"}},
	"github.com/mikelolasagasti/xz":           {"Debian's packages, and kernels packed with filters that other such libraries lack", []string{"image/bundle"}},
	"github.com/pierrec/lz4":                  {"kernels in lz4's first format", []string{"image/bundle"}},
	"github.com/jackc/pgx":                    {"PostgreSQL, without libpq", []string{"store/postgres"}},
	"github.com/miekg/dns":                    {"the DNS server of a sandbox's network", []string{"internal/usernet"}},
	"github.com/opencontainers/runtime-spec":  {"the language gVisor is told in", []string{"provider/gvisor/internal/sentry"}},
	"github.com/pkg/sftp":                     {"files over SSH", []string{"sshd"}},
	"github.com/pelletier/go-toml":            {"Modal's own settings, as its programs write them", []string{"provider/modal"}},
	"github.com/prometheus/client_golang":     {"/metrics", []string{"trace"}},
	"github.com/modal-labs/libmodal/modal-go": {"Modal's protocol, from its own SDK", []string{"internal/fakemodal", "provider/modal"}},
	"google.golang.org/grpc":                  {"what that is spoken over", []string{"internal/fakemodal", "provider/modal"}},
	"google.golang.org/protobuf":              {"and what its messages are", []string{"internal/fakemodal", "provider/modal"}},
	"github.com/spf13/cobra":                  {"commands, help, completion; those of Kubernetes's programs", []string{"cmd/atoll", "internal/testcluster/kube"}},
	"github.com/spf13/pflag":                  {"cobra's flags", []string{"cmd/atoll"}},
	"github.com/vishvananda/netlink":          {"interfaces and routes in a namespace", []string{"internal/usernet", "guest"}},
	"github.com/mdlayher/vsock":               {"sockets between a virtual machine and its host", []string{"guest", "vm/qemu"}},
	"go.opentelemetry.io/otel":                {"traces and metrics", []string{"trace"}},
	"go.uber.org/goleak":                      {"no goroutine is left", []string{"bucket/buckettest", "providertest"}},
	"go.yaml.in/yaml":                         {"the configuration file, front matter, and templates", []string{"config", "frontmatter", "template"}},
	"golang.org/x/crypto":                     {"SSH", []string{"sshd"}},
	"golang.org/x/crypto/x509roots/fallback":  {"roots of trust where the system has none, as in an image from scratch", []string{"cmd/atoll"}},
	"golang.org/x/net":                        {"host names as DNS spells them", []string{"internal/usernet"}},
	"golang.org/x/sync":                       {"what is done side by side, and ends together", []string{"image", "provider/kubernetes", "statesync"}},
	"golang.org/x/term":                       {"raw mode, and its undoing", []string{"cmd/atoll"}},
	"golang.org/x/sys":                        {"system calls that package syscall lacks", nil},
	"go.etcd.io/etcd":                         {"the database of a cluster for tests, in a module of its own", []string{"internal/testcluster/kube"}},
	"k8s.io/api":                              {"what Kubernetes's objects are", []string{"internal/testcluster", "provider/kubernetes"}},
	"k8s.io/apimachinery":                     {"what they have in common", []string{"internal/testcluster", "provider/kubernetes"}},
	"k8s.io/client-go":                        {"the official client of Kubernetes", []string{"internal/testcluster", "provider/kubernetes"}},
	"k8s.io/component-base":                   {"how Kubernetes's programs are run, in that module", []string{"internal/testcluster/kube"}},
	"k8s.io/kubectl":                          {"kubectl, in that module", []string{"internal/testcluster/kube"}},
	"k8s.io/kubernetes":                       {"a cluster's other programs, in that module", []string{"internal/testcluster/kube"}},
	"modernc.org/sqlite":                      {"a database in one file, without cgo", []string{"store"}},
	"gvisor.dev/gvisor": {"the application kernel, and its network stack", []string{
		"bench/runsc", "internal/usernet", "provider/gvisor/internal/runsc", "provider/gvisor/internal/sentry",
	}},
	"github.com/aws/aws-sdk-go-v2/service/dynamodb": {"the client of DynamoDB", []string{"store/dynamo"}},
	"github.com/aws/aws-sdk-go-v2/service/s3":       {"the client of services that speak S3", []string{"bucket/s3"}},
}

// testSupport lists the packages that are made for tests and may therefore
// import package testing.
var testSupport = []string{"vm/vmtest", "bucket/buckettest", "compute/computetest", "providertest", "store/storetest", "internal/testagent/agenttest", "internal/testcluster", "internal/testengine", "internal/testenv", "internal/testimage", "internal/tests3", "internal/testsession", "internal/teststore"}

// A source is one Go file of this repository, whichever of its modules it is in.
type source struct {
	pkg  string // path below the module, "." for the root
	file string
	test bool
	ast  *ast.File
}

// sources parses every Go file, whatever system it is for.
func sources(t *testing.T, set *token.FileSet, mode parser.Mode) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(file string, e fs.DirEntry, err error) error {
		switch name := e.Name(); {
		case err != nil:
			return err
		case e.IsDir() && file != "." && (name == "testdata" || name == "bin" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(set, file, nil, mode)
		if err != nil {
			return err
		}
		all = append(all, source{path.Dir(filepath.ToSlash(file)), file, strings.HasSuffix(file, "_test.go"), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// imports returns what the product's part of each package imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	m := map[string][]string{}
	for _, s := range sources(t, token.NewFileSet(), parser.ImportsOnly) {
		if s.test {
			continue
		}
		m[s.pkg] = append(m[s.pkg], "")
		for _, i := range s.ast.Imports {
			m[s.pkg] = append(m[s.pkg], strings.Trim(i.Path.Value, `"`))
		}
	}
	for pkg, list := range m {
		slices.Sort(list)
		m[pkg] = slices.Compact(list)[1:]
	}
	return m
}

// standard reports whether an import path is one of the standard library.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// inModule returns the part of an import path below this module.
func inModule(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func TestArrows(t *testing.T) {
	have := imports(t)
	for pkg, list := range have {
		allowed, ok := rooms[pkg]
		if !ok {
			t.Errorf("%s: a new package: say in rooms what it may import, and why", pkg)
			continue
		}
		for _, path := range list {
			to, ours := inModule(path)
			if !ours || to == "." {
				continue
			}
			if _, ok := allowed[to]; !ok {
				t.Errorf("%s imports %s: not allowed; if it must be, say in rooms why", pkg, to)
			}
		}
		for to := range allowed {
			if !slices.Contains(list, module+"/"+to) {
				t.Errorf("%s no longer imports %s: take it out of rooms", pkg, to)
			}
		}
	}
	for pkg := range rooms {
		if _, ok := have[pkg]; !ok {
			t.Errorf("%s is in rooms and does not exist", pkg)
		}
	}
}

// The root package is a dictionary: whoever imports it gets nothing else.
func TestRootImportsOnlyTheStandardLibrary(t *testing.T) {
	for _, path := range imports(t)["."] {
		if !standard(path) {
			t.Errorf("the root package imports %s", path)
		}
	}
}

func TestOtherModulesHaveAReason(t *testing.T) {
	used := map[string]bool{}
	for pkg, list := range imports(t) {
		for _, path := range list {
			if _, ours := inModule(path); ours || standard(path) {
				continue
			}
			guest := ""
			for prefix := range guests {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > len(guest) {
					guest = prefix
				}
			}
			if guest == "" {
				t.Errorf("%s imports %s: a new dependency: say in guests why", pkg, path)
				continue
			}
			used[guest+" "+pkg] = true
			if in := guests[guest].in; in != nil && !slices.Contains(in, pkg) {
				t.Errorf("%s imports %s, which is for %s only", pkg, path, strings.Join(guests[guest].in, ", "))
			}
		}
	}
	for prefix, guest := range guests {
		for _, pkg := range guest.in {
			if !used[prefix+" "+pkg] {
				t.Errorf("%s no longer imports %s: take it out of guests", pkg, prefix)
			}
		}
	}
}

// suite is the program that is a test.
const suite = "cmd/atoll-provider-test"

// Test code does not belong into the binary: not ours, and not package
// testing, which registers flags.
func TestNoTestCodeInTheProduct(t *testing.T) {
	for pkg, list := range imports(t) {
		if slices.Contains(list, "testing") && !slices.Contains(testSupport, pkg) && pkg != suite {
			t.Errorf("%s imports testing", pkg)
		}
	}
	commands, err := filepath.Glob("cmd/*")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-deps"}
	for _, dir := range commands {
		if filepath.ToSlash(dir) != suite {
			args = append(args, "./"+filepath.ToSlash(dir))
		}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		pkg, _ := inModule(path)
		if path == "testing" || slices.Contains(testSupport, pkg) {
			t.Errorf("the commands link %s", path)
		}
	}
}

// A layer hides what it wraps from a type assertion, so optional interfaces
// are asserted in the root's helpers and nowhere else.
func TestOptionalInterfacesAreAssertedInHelpersOnly(t *testing.T) {
	set := token.NewFileSet()
	all := sources(t, set, parser.SkipObjectResolution)
	optional, methods := optionalInterfaces(all)
	if len(optional) < 10 {
		t.Fatalf("found only %v in optional.go", optional)
	}
	for _, s := range all {
		if s.pkg == "." && !s.test {
			continue // the helpers
		}
		asserted := func(typ ast.Expr) {
			if name := optionalName(typ, optional, methods); name != "" {
				t.Errorf("%s: asserts %s: call its helper instead", set.Position(typ.Pos()), name)
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				asserted(n.Type) // nil in a type switch
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					for _, typ := range c.(*ast.CaseClause).List {
						asserted(typ)
					}
				}
			}
			return true
		})
	}
}

// optionalInterfaces returns the names of the interfaces in optional.go and
// filesub.go, and those of their methods.
func optionalInterfaces(all []source) (names, methods []string) {
	for _, s := range all {
		if s.file != "optional.go" && s.file != "filesub.go" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if iface, ok := spec.Type.(*ast.InterfaceType); ok {
				names = append(names, spec.Name.Name)
				for _, m := range iface.Methods.List {
					methods = append(methods, m.Names[0].Name)
				}
			}
			return false
		})
	}
	return names, methods
}

// optionalName returns what typ is called if it is an optional interface, by
// name or written out; else "".
func optionalName(typ ast.Expr, optional, methods []string) string {
	switch typ := typ.(type) {
	case *ast.SelectorExpr:
		if pkg, ok := typ.X.(*ast.Ident); ok && pkg.Name == "atoll" && slices.Contains(optional, typ.Sel.Name) {
			return "atoll." + typ.Sel.Name
		}
	case *ast.InterfaceType:
		for _, m := range typ.Methods.List {
			if len(m.Names) == 1 && slices.Contains(methods, m.Names[0].Name) {
				return "an interface with " + m.Names[0].Name
			}
		}
	}
	return ""
}

// The documentation of a package begins in one place.
func TestPackageDocIsInOneFile(t *testing.T) {
	docs := map[string][]string{}
	for _, s := range sources(t, token.NewFileSet(), parser.PackageClauseOnly|parser.ParseComments) {
		if s.test {
			continue
		}
		docs[s.pkg] = slices.Grow(docs[s.pkg], 1)
		if s.ast.Doc != nil {
			docs[s.pkg] = append(docs[s.pkg], s.file)
			want := "Package " + s.ast.Name.Name + " "
			if s.ast.Name.Name == "main" {
				want = "Command " + path.Base(s.pkg) + " "
			}
			if text := s.ast.Doc.Text(); !strings.HasPrefix(text, want) {
				t.Errorf("%s: the package's doc must begin with %q", s.file, want)
			}
		}
	}
	for pkg, files := range docs {
		if len(files) != 1 {
			t.Errorf("%s: documented in %d files %v, want one", pkg, len(files), files)
		}
	}
}
