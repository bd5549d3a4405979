package atoll_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
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

	"internal/awsclient":       {},
	"provider/internal/cgroup": {},
	"provider/internal/supervised": {
		"provider/internal/sweeper":               "what falls due",
		"server/api":                              "it is the client of its supervisors",
		"provider/internal/cgroup":                "limits that the host enforces",
		"internal/fsutil":                         "records of snapshots, the lock of a creation",
		"provider/internal/watchhub":              "its Watch",
		"provider/internal/supervised/files":      "the work directory of a stopped sandbox",
		"provider/internal/supervised/supervisor": "what it starts, and the jobs it gives",
		"provider/internal/supervised/statedir":   "where state lives",
		"internal/userdb":                         "which users are root",
		"internal/lazyfs":                         "the use of files is noted",
		"provider/internal/volume":                "which volumes can be mounted",
	},
	"provider/internal/supervised/files": {"internal/dirfs": "directories of the host"},
	"provider/internal/supervised/supervisor": {
		"server/api":                            "a supervisor serves the API of its sandbox",
		"provider/internal/cgroup":              "usage, and what ran out of memory",
		"internal/idletracker":                  "when it was last used",
		"provider/internal/supervised/statedir": "its sandbox's record and locks",
		"internal/process":                      "main processes that have ended",
		"internal/socket":                       "on which it gets its job, and the one it serves",
	},
	"provider/internal/supervised/statedir": {
		"internal/fsutil":          "records, locks, removals",
		"provider/internal/volume": "volumes",
	},
	"internal/process":           {"internal/fsutil": "files of processes that have ended"},
	"internal/dirfs":             {"internal/lazyfs": "a directory is opened for each call that is confined to it"},
	"internal/fsutil":            {},
	"provider/internal/watchhub": {},
	"internal/idletracker":       {},
	"internal/keymutex":          {},
	"provider/internal/guestproc": {
		"internal/dirfs":           "what is on volumes",
		"internal/process":         "main processes that have ended",
		"internal/lazyfs":          "files that are reached through the guest",
		"provider/internal/volume": "volumes, of which a caretaker has the files",
	},
	"internal/mux":                {},
	"internal/suggest":            {},
	"internal/socket":             {},
	"provider/internal/steps":     {},
	"provider/internal/sweeper":   {},
	"internal/userdb":             {},
	"internal/lazyfs":             {},
	"provider/internal/guestconn": {},
	"internal/procgroup":          {"internal/process": "processes of this machine are its processes"},
	"provider/internal/volume":    {"internal/fsutil": "locks, and the removal of what programs made"},
	"internal/reservedip":         {},
	"internal/terminal":           {},
	"internal/usernet":            {"internal/reservedip": "addresses that are not what they look like"},
	"internal/testing/check":      {},
	"internal/testing/testmodel":  {},
	"internal/testing/testsession": {
		"storage/store/sqlite": "where records are on one machine",
		"provider/local":       "whose sandboxes they are",
		"layer/session":        "whose sessions",
	},
	"internal/testing/testagent": {},
	"internal/testing/testenv":   {},
	"internal/testing/teststore": {
		"layer/session":            "sessions and scopes",
		"storage/store/sqlite":     "where records are on one machine",
		"internal/testing/testenv": "where the server of PostgreSQL is",
		"storage/store":            "what tests run over",
		"storage/store/postgres":   "and what they run over once more",
	},
	"internal/testing/tests3":    {"internal/testing/testenv": "where the servers are"},
	"internal/testing/hostile":   {},
	"internal/testing/testimage": {"internal/testing/testenv": "a static busybox to put into images"},
	"provider/internal/inprocess": {
		"internal/dirfs":             "files of a sandbox that is a directory",
		"internal/fsutil":            "its records and their locks",
		"provider/internal/watchhub": "its Watch",
		"internal/process":           "its processes",
		"internal/lazyfs":            "files are opened for each call",
		"provider/internal/volume":   "its volumes",
	},
	"internal/testing/testagent/agenttest": {},

	"internal/tartree": {},

	"machine/image": {
		"internal/tartree":    "images are saved as archives",
		"internal/fsutil":     "the removal of root file systems",
		"internal/reservedip": "what no registry may send it to",
	},
	"machine/image/bundle": {
		"internal/fsutil":  "locks, files replaced as a whole, removals",
		"internal/tartree": "the files of an image become a disk",
		"machine/vm":       "the commands that guests run",
	},
	"storage/objectstore": {"internal/fsutil": "locks between programs, and what a full disk says"},
	"storage/objectstore/s3": {
		"storage/objectstore": "whose promises it keeps",
		"internal/awsclient":  "how it asks a service",
	},
	"storage/filesync": {"storage/objectstore": "where versions are"},
	"storage/objectstore/objectstoretest": {
		"storage/objectstore":      "whose promises it checks",
		"internal/testing/testenv": "how slow the machine is",
	},

	"machine/vm": {"internal/fsutil": "locks, and files replaced as a whole"},
	"machine/vm/vmtest": {
		"server/api":               "the guest's sandbox is asked",
		"machine/guest":            "what is in the machines",
		"internal/testing/testenv": "how slow the machine is",
		"machine/vm":               "whose promises it checks",
	},
	"machine/vm/qemu": {
		"machine/vm/internal/child": "its processes end with it",
		"internal/fsutil":           "atomic writes of probe results",
		"internal/mux":              "one serial port carries all connections",
		"internal/socket":           "the ends of which QEMU is given one",
		"machine/vm":                "whose machines they are",
	},
	"machine/vm/internal/child": {"machine/vm": "where consoles are"},
	"machine/vm/vz": {
		"machine/vm":                "whose driver it is",
		"machine/vm/internal/child": "the process of a machine, and its console",
	},
	"machine/vm/wsl2": {
		"internal/fsutil":           "the owners and the content of persistent directories",
		"internal/mux":              "its guest is reached over one stream",
		"machine/vm":                "whose driver it is",
		"machine/vm/internal/child": "the process of that stream",
	},
	"internal/testing/testcluster": {
		"internal/testing/testenv":   "what it is made of",
		"internal/testing/testimage": "the images of its pods",
	},
	"internal/testing/testcluster/kube":             {},
	"internal/testing/testengine/dagger/distconsts": {},
	"internal/testing/testengine": {
		"internal/testing/testenv":   "what it is made of",
		"internal/testing/testimage": "the images of its containers",
	},
	"provider/plugin": {
		"server/api":         "what its programs speak",
		"internal/secretref": "settings that are secrets",
	},
	"internal/secretref":           {},
	"internal/guestprogram":        {},
	"provider/kubernetes/settings": {},
	"provider/modal/settings":      {"internal/secretref": "the token"},
	"agent/jobs/dagger/settings":   {},
	"agent/jobs/remote": {
		"server/api": "errors as that has them on the wire",
		"agent/jobs": "whose backend it carries",
	},
	"provider/kubernetes": {
		"provider/plugin":              "it is a program of its own",
		"provider/kubernetes/settings": "what a configuration says",
		"machine/guest":                "what is in its pods",
		"provider/internal/watchhub":   "its Watch",
		"internal/keymutex":            "one at a time works on a sandbox",
		"provider/internal/guestproc":  "processes and files whose guest has gone",
		"provider/internal/steps":      "what a creation takes, one after the other",
		"provider/internal/sweeper":    "what falls due",
		"provider/internal/guestconn":  "one connection to a guest for all",
		"provider/internal/volume":     "names of data volumes, and the removal of projects",
	},
	"provider/modal": {
		"internal/secretref":          "files that people write are bounded",
		"internal/guestprogram":       "the program of its sandboxes",
		"provider/plugin":             "it is a program of its own",
		"provider/modal/settings":     "what a configuration says",
		"machine/guest":               "what is in its sandboxes",
		"provider/internal/watchhub":  "its Watch",
		"internal/keymutex":           "one at a time works on a sandbox",
		"provider/internal/guestproc": "processes and files whose guest has gone",
		"provider/internal/steps":     "what a creation takes, one after the other",
		"provider/internal/sweeper":   "what falls due",
		"provider/internal/guestconn": "one connection to a guest for all",
		"provider/internal/volume":    "names of data volumes, and the removal of projects",
	},
	"internal/testing/fakewsl": {
		"internal/fsutil":          "its distributions, written down as a whole",
		"internal/testing/testenv": "how slow the machine is",
	},
	"internal/testing/fakemodal": {
		"internal/fsutil":          "the removal of what programs made in volumes",
		"internal/testing/testenv": "how slow the machine is",
	},
	"internal/testing/fakevmm": {
		"internal/testing/testenv": "how slow the machine is",
		"machine/guest":            "which its sockets lead to where there is no machine",
		"internal/dirfs":           "the files that it serves then",
		"machine/vm":               "what machines are",
		"machine/vm/qemu":          "which makes its machines where there are any",
	},
	"machine/vm/firecracker": {
		"internal/mux":              "how a port is asked for on its vsock",
		"machine/vm":                "whose driver it is",
		"machine/vm/internal/child": "its process",
	},
	"agent/output": {
		"agent": "the words of conversations",
	},
	"layer/trace": {
		"layer/intercept": "it sees all calls",
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
	},
	"layer/limit": {},
	"layer/authz": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
		"server/auth":     "accounts and keys",
		"storage/store":   "where keys are",
	},
	"layer/audit": {
		"layer/intercept": "it sees all calls",
		"layer/session":   "sessions and scopes",
		"server/auth":     "accounts and keys",
		"storage/store":   "where events are",
	},
	"layer/router": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
	},
	"layer/workspace":   {"internal/fsutil": "records, locks, removals"},
	"provider/secret":   {},
	"agent/frontmatter": {},
	"agent/hooks": {
		"agent": "the words of conversations",
	},
	"agent/template": {
		"internal/suggest": "suggestions for misspelt keys and names of templates",
		"agent/hooks":      "what is done in its sandboxes when",
	},
	"agent/conversation": {
		"server/auth":         "accounts and keys",
		"agent":               "the words of conversations",
		"storage/objectstore": "the history of turns is beside the versions of files",
		"agent/output":        "what agents print",
		"internal/keymutex":   "one at a time works on a sandbox",
		"agent/hooks":         "the hooks of templates",
		"storage/filesync":    "versions of files",
		"storage/store":       "where it writes",
		"agent/template":      "what sandboxes and agents are made from",
	},
	"layer/pool": {
		"layer/registry":    "reconciliation",
		"internal/keymutex": "one at a time gives a name away",
		"storage/store":     "where it writes",
	},
	"layer/session": {
		"internal/idletracker": "when a sandbox was last used",
		"internal/keymutex":    "one at a time works on a session",
		"internal/lazyfs":      "the use of files is noted",
		"storage/store":        "where it writes",
	},
	"agent/jobs": {},
	"agent/jobs/jobstest": {
		"agent/jobs":               "whose promises it checks",
		"internal/testing/testenv": "how slow the machine is",
	},
	"agent/jobs/dagger": {
		"agent/jobs/dagger/settings": "what a configuration says",
		"agent/jobs/remote":          "how it is reached",
		"internal/guestprogram":      "what its containers run",
		"provider/plugin":            "it is a program of its own",
		"agent/jobs":                 "whose backend it is",
		"agent/frontmatter":          "which images no engine can pull",
		"machine/guest":              "what its containers run",
		"internal/fsutil":            "the guest's program, replaced as a whole, and locks of jobs",
	},
	"agent/tools": {
		"layer/session":     "sessions and scopes",
		"server/auth":       "accounts and keys",
		"agent/jobs":        "what runs the programs of sandbox_run",
		"agent/frontmatter": "what the agent's file says",
		"internal/keymutex": "one at a time changes a file",
	},
	"server/mcp": {
		"layer/session": "sessions and scopes",
		"server/auth":   "accounts and keys",
		"agent/tools":   "what it shows",
	},
	"layer/registry": {
		"server/auth":       "accounts and keys",
		"internal/keymutex": "one at a time works on a record",
		"provider/secret":   "what it keeps for each sandbox",
		"storage/store":     "where it writes",
	},
	"storage/store": {
		"server/auth": "accounts and keys",
		"agent":       "the words of conversations",
	},
	"storage/store/storetest": {
		"layer/session":            "sessions and scopes",
		"server/auth":              "accounts and keys",
		"agent":                    "the words of conversations",
		"storage/store":            "whose promises it checks",
		"internal/testing/testenv": "how slow the machine is",
	},
	"storage/store/dynamo": {
		"agent":              "the words of conversations",
		"internal/awsclient": "how it asks a service",
		"storage/store":      "whose promises it keeps",
	},
	"storage/store/postgres": {
		"storage/store/sqlstore": "the queries of its tables",
		"storage/store":          "whose tables it has",
	},
	"server/api": {
		"layer/workspace":   "workspaces",
		"layer/session":     "sessions and scopes",
		"layer/registry":    "reconciliation",
		"layer/pool":        "reports on pools",
		"storage/store":     "the records and their interfaces",
		"server/auth":       "accounts and keys",
		"agent":             "the words of conversations",
		"internal/fsutil":   "the token in a file",
		"internal/socket":   "sockets with long paths",
		"internal/terminal": "what becomes of a terminal without a client",
	},
	"server/sshd": {
		"server/auth":       "accounts and keys",
		"internal/fsutil":   "the host key, and the permissions of authorized keys",
		"internal/terminal": "what becomes of a terminal without a client",
	},
	"server/openapi": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/pool":      "reports on pools",
		"agent":           "the words of conversations",
		"server/api":      "what it describes",
	},
	"machine/guest": {
		"agent/jobs":           "what it does with a job",
		"server/api":           "what a guest serves is the API",
		"internal/dirfs":       "files of the system it runs in",
		"internal/idletracker": "when it was last used",
		"internal/mux":         "one connection carries many requests",
		"internal/userdb":      "users of that system",
		"internal/process":     "its processes",
		"internal/socket":      "the peer's user, and inherited sockets",
		"internal/procgroup":   "how they are started, and ended",
		"internal/tartree":     "programs of a machine that stays are replaced",
		"internal/lazyfs":      "its files are served by another process",
		"machine/vm":           "ports of virtual machines",
	},

	"provider/local": {
		"provider/internal/inprocess": "the life of sandboxes, shared with mock",
		"internal/process":            "host processes are its processes",
		"internal/procgroup":          "how they are started, and ended",
	},
	"provider/mock": {
		"provider/internal/inprocess": "the life of sandboxes, shared with local",
		"internal/process":            "scripted processes are its processes",
	},
	"provider/docker": {
		"machine/guest":               "what runs in its containers",
		"internal/dirfs":              "which names are on volumes",
		"internal/fsutil":             "locks, and records of images",
		"provider/internal/watchhub":  "its Watch",
		"provider/internal/guestproc": "main processes are known when their guest has gone",
		"internal/userdb":             "whose the work directory is where there is no guest",
		"internal/process":            "main processes that have ended, and all processes where there is no guest",
		"internal/procgroup":          "marks of processes, by which descendants are found",
		"internal/socket":             "which process the engine is",
		"provider/internal/steps":     "what a creation takes, one after the other",
		"provider/internal/sweeper":   "what falls due",
		"internal/lazyfs":             "files are served by guests",
		"provider/internal/guestconn": "one connection to a guest serves all calls",
		"provider/internal/volume":    "names of volumes",
	},
	"provider/vmdocker": {
		"internal/fsutil":            "notes of sandboxes, replaced as a whole, and the removal of a project's",
		"provider/internal/watchhub": "its Watch",
		"internal/keymutex":          "one at a time starts the machine of a project",
		"internal/lazyfs":            "files are reached through a machine that is started for them",
		"provider/docker":            "the engines in its machines",
		"machine/vm":                 "how large machines are, and the port of an engine",
	},
	"provider/gvisor": {
		"machine/image":                           "images become root file systems",
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/supervised":            "its sandboxes have supervisors",
		"provider/internal/supervised/supervisor": "the jobs it completes",
		"provider/internal/supervised/statedir":   "what a record says of an image",
		"internal/userdb":                         "which users are root",
		"provider/gvisor/internal/runsc":          "so that every importer can serve as sentry and gofer",
		"provider/gvisor/internal/sentry":         "what is gVisor's in its supervisors",
	},
	"provider/gvisor/internal/sentry": {
		"machine/guest":                           "reaches the files that only the sandbox sees",
		"internal/dirfs":                          "what the guest shows",
		"provider/internal/supervised/files":      "the files that only the sandbox sees, by name",
		"provider/internal/supervised/supervisor": "whose engine it is",
		"provider/internal/supervised/statedir":   "where the data volume is",
		"internal/userdb":                         "users of the sandbox",
		"internal/process":                        "its processes",
		"internal/socket":                         "what its guest inherits",
		"internal/usernet":                        "its network",
		"provider/gvisor/internal/overlay":        "what a stop keeps of the root file system",
	},
	"provider/gvisor/internal/runsc":   {},
	"provider/gvisor/internal/overlay": {},

	"provider/providertest": {
		"layer/intercept":          "it sees all calls",
		"layer/workspace":          "workspaces",
		"layer/session":            "sessions and scopes",
		"layer/registry":           "reconciliation",
		"layer/pool":               "reports on pools",
		"provider/secret":          "what a sandbox has of its secret is checked",
		"internal/testing/testenv": "how slow the machine is",
	},

	"provider/microvm": {
		"machine/image/bundle":                    "what machines boot",
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/supervised":            "its sandboxes have supervisors",
		"provider/internal/supervised/supervisor": "the jobs it completes",
		"provider/internal/supervised/statedir":   "what a record says of an image",
		"provider/microvm/internal/vmengine":      "what is a machine's in its supervisors",
		"machine/vm":                              "how large machines can be",
		"machine/vm/firecracker":                  "how its machines are jailed",
	},
	"provider/microvm/internal/vmengine": {
		"layer/workspace":      "workspaces",
		"server/api":           "what the guest serves is the API",
		"machine/guest":        "its configuration",
		"machine/image/bundle": "where a root archive has the guest",
		"internal/fsutil":      "the removal of what machines keep",
		"provider/internal/supervised/supervisor": "whose engine it is",
		"internal/process":                        "what is left of the main process",
		"internal/socket":                         "the ends of its network",
		"internal/usernet":                        "its network",
		"internal/lazyfs":                         "files are served by the guest",
		"machine/vm":                              "what machines are",
		"machine/vm/firecracker":                  "what runs them",
		"machine/vm/qemu":                         "or this",
		"machine/vm/vz":                           "or this, on macOS",
		"machine/vm/wsl2":                         "or this, on Windows",
	},
	"config": {
		"layer":                        "layers embed it",
		"server/auth":                  "accounts and keys",
		"storage/store/sqlite":         "where records are on one machine",
		"agent/jobs":                   "what is behind sandbox_run",
		"agent/jobs/dagger/settings":   "the settings of a program of its own",
		"agent/jobs/remote":            "the one that is no provider",
		"internal/guestprogram":        "what providers put into sandboxes",
		"internal/secretref":           "settings that are secrets",
		"provider/plugin":              "providers that are programs of their own",
		"provider/kubernetes/settings": "the settings of a program of its own",
		"provider/modal/settings":      "the settings of a program of its own",
		"server/api":                   "which URLs of servers a client takes",
		"layer/audit":                  "the caller of each operation",
		"layer/authz":                  "around all, and the keys of callers",
		"agent/conversation":           "what a server keeps of agents",
		"agent/hooks":                  "what runs hooks",
		"storage/objectstore":          "directories that are object storage",
		"storage/objectstore/s3":       "and services that are",
		"agent/frontmatter":            "what the images stand for that agents name",
		"machine/image":                "the options of its store",
		"machine/image/bundle":         "what virtual machines boot",
		"layer/registry":               "records of sandboxes",
		"provider/docker":              "config alone knows all providers",
		"provider/gvisor":              "config alone knows all providers",
		"provider/local":               "config alone knows all providers",
		"provider/microvm":             "config alone knows all providers",
		"provider/mock":                "config alone knows all providers",
		"layer/limit":                  "around each provider",
		"layer/pool":                   "around each provider",
		"layer/session":                "around all providers",
		"storage/filesync":             "where versions of directories are kept",
		"storage/store":                "where ledger and sessions write",
		"agent/template":               "the directory of templates",
		"storage/store/dynamo":         "where conversations can be",
		"storage/store/postgres":       "a backend of the store",
		"layer/router":                 "one provider of all that are configured",
		"agent/tools":                  "the options of the tools of agents",
		"layer/trace":                  "the layer around every provider",
		"machine/vm/firecracker":       "whether its machines work here, and how they are jailed",
		"machine/vm/qemu":              "whether its machines work here",
		"machine/vm/vz":                "whether its machines work here",
		"machine/vm/wsl2":              "whether its machines work here",
		"layer/workspace":              "around all providers",
		"provider/vmdocker":            "config alone knows all providers",
		"machine/vm":                   "how large machines of projects are",

		"internal/fsutil":  "the note that the default provider works, the id of a state directory",
		"internal/suggest": "suggestions for misspelt keys",
	},
	"agent/genkit": {
		"layer/session":     "sessions and scopes",
		"agent/frontmatter": "agent files",
		"agent/tools":       "what it shows",
	},
	"cmd/atoll": {
		"layer/workspace":      "workspaces",
		"layer/session":        "sessions and scopes",
		"layer/registry":       "reconciliation",
		"layer/pool":           "reports on pools",
		"storage/store":        "the records and their interfaces",
		"server/auth":          "accounts and keys",
		"server/openapi":       "the pages that serve shows",
		"server/api":           "the CLI is a client, and the server",
		"config":               "what it runs on",
		"agent/frontmatter":    "the file of the agent that atoll mcp serves",
		"machine/image/bundle": "atoll image build and pull",
		"internal/dirfs":       "the local side of cp",
		"provider/plugin":      "what doctor says of a program that is missing",
		"server/mcp":           "atoll mcp, and /mcp of serve",
		"server/sshd":          "serve answers SSH too",
		"storage/filesync":     "what sync does",
		"agent/tools":          "what mcp shows",
		"layer/trace":          "the metrics that serve shows",
	},
	"packaging/compress": {},
	"packaging/image":    {},
	"cmd/atoll-kubernetes": {
		"provider/plugin":     "what its main function is",
		"provider/kubernetes": "what it serves",
	},
	"cmd/atoll-provider-test": {
		"provider/plugin":       "what it tests",
		"provider/providertest": "the suite",
	},
	"cmd/atoll-modal": {
		"provider/plugin": "what its main function is",
		"provider/modal":  "what it serves",
	},
	"cmd/atoll-dagger": {
		"agent/jobs/dagger": "what it serves",
		"provider/plugin":   "what its main function is",
	},
	"cmd/atoll-guest": {"machine/guest": "it is the program of that"},
	"bench": {
		"layer/registry": "reconciliation",
		"layer/pool":     "reports on pools",
		"server/api":     "what is measured goes through the API", "storage/objectstore/s3": "memory is measured inside", "internal/dirfs": "memory is measured inside",
		"storage/filesync": "memory is measured inside", "machine/image/bundle": "what a bare machine boots", "internal/mux": "its guest is greeted",
	},
	"bench/runsc":       {},
	"examples/library":  {"provider/gvisor": "what it shows"},
	"examples/workflow": {},
	"storage/store/sqlstore": {
		"layer/session": "sessions and scopes",
		"agent":         "the words of conversations",
		"storage/store": "the records and their interfaces",
	},
	"storage/store/sqlite": {
		"storage/store/sqlstore": "the queries of its tables",
		"storage/store":          "the records and their interfaces",
		"internal/fsutil":        "locks of files",
	},
	"agent":       {},
	"server/auth": {},
	"layer":       {},
	"layer/intercept": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
	},
}

// guests says why each module of others is here, and which packages may use it;
// nil means all but the root. Tests may use more.
var guests = map[string]struct {
	why string
	in  []string
}{
	"github.com/aws/aws-sdk-go-v2":            {"how AWS's services are asked, and where their credentials are", []string{"storage/objectstore/s3", "internal/awsclient", "storage/store/dynamo"}},
	"github.com/aws/smithy-go":                {"errors of those clients", []string{"storage/objectstore/s3", "internal/awsclient", "storage/store/dynamo"}},
	"github.com/coder/websocket":              {"streams over HTTP, and over that of Kubernetes", []string{"server/api", "provider/kubernetes"}},
	"dagger.io/dagger":                        {"Dagger's own SDK", []string{"agent/jobs/dagger"}},
	"github.com/danielgtaylor/huma":           {"OpenAPI made from the code", []string{"server/openapi"}},
	"github.com/containerd/errdefs":           {"kinds of the engine's errors", []string{"provider/docker"}},
	"github.com/distribution/reference":       {"names of images as the engine spells them", []string{"provider/docker"}},
	"github.com/modelcontextprotocol/go-sdk":  {"the protocol, on streams and HTTP", []string{"bench", "examples/workflow", "server/mcp"}},
	"github.com/moby/moby":                    {"the official client of Docker Engines", []string{"internal/testing/testengine", "provider/docker"}},
	"github.com/creack/pty":                   {"terminals on every Unix", []string{"internal/process", "internal/procgroup"}},
	"github.com/firebase/genkit/go":           {"agents on Genkit; a module of its own keeps it out of this one", []string{"agent/genkit"}},
	"github.com/fsnotify/fsnotify":            {"one watch on a directory sees all changes of records", []string{"provider/internal/supervised", "provider/vmdocker"}},
	"github.com/go-git/go-git":                {"rules in the syntax of gitignore", []string{"storage/filesync"}},
	"github.com/google/jsonschema-go":         {"schemas of what tools take and give, as MCP has them", []string{"agent/genkit", "agent/tools"}},
	"github.com/google/go-containerregistry":  {"OCI images and registries", []string{"machine/image", "internal/testing/fakemodal", "internal/testing/testcluster", "internal/testing/testengine", "internal/testing/testimage", "packaging/image", "provider/docker", "provider/modal"}},
	"github.com/hashicorp/yamux":              {"many connections over one stream", []string{"internal/mux"}},
	"github.com/klauspost/compress":           {"layers and the embedded guest in zstd, gzip twice as fast", []string{"machine/image", "machine/image/bundle", "internal/guestprogram", "packaging/compress"}},
	"github.com/mikelolasagasti/xz":           {"Debian's packages, and kernels packed with filters that other such libraries lack", []string{"machine/image/bundle"}},
	"github.com/pierrec/lz4":                  {"kernels in lz4's first format", []string{"machine/image/bundle"}},
	"github.com/jackc/pgx":                    {"PostgreSQL, without libpq", []string{"storage/store/postgres"}},
	"github.com/miekg/dns":                    {"the DNS server of a sandbox's network", []string{"internal/usernet"}},
	"github.com/opencontainers/runtime-spec":  {"the format of containers for gVisor", []string{"provider/gvisor/internal/sentry"}},
	"github.com/pkg/sftp":                     {"files over SSH", []string{"server/sshd"}},
	"github.com/pelletier/go-toml":            {"Modal's own settings, as its programs write them", []string{"provider/modal"}},
	"github.com/prometheus/client_golang":     {"/metrics", []string{"layer/trace"}},
	"github.com/modal-labs/libmodal/modal-go": {"Modal's protocol, from its own SDK", []string{"internal/testing/fakemodal", "provider/modal"}},
	"google.golang.org/grpc":                  {"what that is spoken over", []string{"internal/testing/fakemodal", "provider/modal"}},
	"google.golang.org/protobuf":              {"and what its messages are", []string{"internal/testing/fakemodal", "provider/modal"}},
	"github.com/spf13/cobra":                  {"commands, help, completion; those of Kubernetes's programs", []string{"cmd/atoll", "internal/testing/testcluster/kube"}},
	"github.com/spf13/pflag":                  {"cobra's flags", []string{"cmd/atoll"}},
	"github.com/vishvananda/netlink":          {"interfaces and routes in a namespace", []string{"internal/usernet", "machine/guest"}},
	"github.com/mdlayher/vsock":               {"sockets between a virtual machine and its host", []string{"machine/guest", "machine/vm/qemu"}},
	"go.opentelemetry.io/otel":                {"traces and metrics", []string{"layer/trace"}},
	"go.uber.org/goleak":                      {"no goroutine is left", []string{"storage/objectstore/objectstoretest", "provider/providertest"}},
	"go.yaml.in/yaml":                         {"the configuration file, front matter, and templates", []string{"config", "agent/frontmatter", "agent/template"}},
	"golang.org/x/crypto":                     {"SSH", []string{"server/sshd"}},
	"golang.org/x/crypto/x509roots/fallback":  {"roots of trust where the system has none, as in an image from scratch", []string{"cmd/atoll"}},
	"golang.org/x/net":                        {"host names as DNS spells them", []string{"internal/usernet"}},
	"golang.org/x/sync":                       {"what is done side by side, and ends together", []string{"machine/image", "provider/kubernetes", "storage/filesync"}},
	"golang.org/x/term":                       {"raw mode, and its undoing", []string{"cmd/atoll"}},
	"golang.org/x/sys":                        {"system calls that package syscall lacks", nil},
	"go.etcd.io/etcd":                         {"the database of a cluster for tests, in a module of its own", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/api":                              {"what Kubernetes's objects are", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/apimachinery":                     {"what they have in common", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/client-go":                        {"the official client of Kubernetes", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/component-base":                   {"how Kubernetes's programs are run, in that module", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/kubectl":                          {"kubectl, in that module", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/kubernetes":                       {"a cluster's other programs, in that module", []string{"internal/testing/testcluster/kube"}},
	"modernc.org/sqlite":                      {"a database in one file, without cgo", []string{"storage/store/sqlite"}},
	"gvisor.dev/gvisor": {"the application kernel, and its network stack", []string{
		"bench/runsc", "internal/usernet", "provider/gvisor/internal/runsc", "provider/gvisor/internal/sentry",
	}},
	"github.com/aws/aws-sdk-go-v2/service/dynamodb": {"the client of DynamoDB", []string{"storage/store/dynamo"}},
	"github.com/aws/aws-sdk-go-v2/service/s3":       {"the client of services that speak S3", []string{"storage/objectstore/s3"}},
}

// testSupport lists the packages that are made for tests and may therefore
// import package testing.
var testSupport = []string{"machine/vm/vmtest", "storage/objectstore/objectstoretest", "agent/jobs/jobstest", "provider/providertest", "storage/store/storetest", "internal/testing/testagent/agenttest", "internal/testing/testcluster", "internal/testing/testengine", "internal/testing/testenv", "internal/testing/testimage", "internal/testing/tests3", "internal/testing/testsession", "internal/testing/teststore"}

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

// The root package defines interfaces only, so that its users depend on nothing else.
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
	commands, err := filepath.Glob("cmd/atoll*")
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
	optional := abilityMethods(all)
	if len(optional) < 20 {
		t.Fatalf("found only %v", optional)
	}
	for _, s := range all {
		if s.pkg == "." && !s.test {
			continue // the helpers
		}
		asserted := func(typ ast.Expr) {
			if name := optionalName(typ, optional); name != "" {
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

// As passes a layer by that has only some of the methods of an optional interface, so a
// layer has all of them or none.
func TestLayersImplementWholeInterfaces(t *testing.T) {
	all := sources(t, token.NewFileSet(), parser.SkipObjectResolution)
	abilities := abilityMethods(all)
	if len(abilities) < 20 {
		t.Fatalf("found only %v", abilities)
	}
	embedded, methods := map[string][]string{}, map[string][]string{} // of each package and type
	for _, s := range all {
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					typ := s.pkg + " " + typeName(d.Recv.List[0].Type)
					methods[typ] = append(methods[typ], d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						embedded[s.pkg+" "+spec.Name.Name] = embeddedIn(s.pkg, spec.Type)
					}
				}
			}
		}
	}
	// inspect returns the methods of a type but for those of the root's layers, and whether it is a layer.
	var inspect func(typ string) (has []string, layer bool)
	inspect = func(typ string) (has []string, layer bool) {
		has = methods[typ]
		for _, inner := range embedded[typ] {
			if strings.HasPrefix(inner, "atoll.") {
				layer = layer || strings.HasSuffix(inner, "Layer")
				continue
			}
			more, is := inspect(inner)
			has, layer = append(has[:len(has):len(has)], more...), layer || is
		}
		return has, layer
	}
	for layer := range embedded {
		has, is := inspect(layer)
		if !is {
			continue
		}
		for ability, want := range abilities {
			var lacks []string
			for _, name := range want {
				if !slices.Contains(has, name) {
					lacks = append(lacks, name)
				}
			}
			if len(lacks) > 0 && len(lacks) < len(want) {
				t.Errorf("%s has some methods of %s, but not %s", layer, ability, strings.Join(lacks, ", "))
			}
		}
	}
}

// The suite's Layer checks that a layer hides no ability, so it has to know all of them.
func TestLayerKnowsEveryAbility(t *testing.T) {
	text, err := os.ReadFile("provider/providertest/layer.go")
	if err != nil {
		t.Fatal(err)
	}
	for name := range abilityMethods(sources(t, token.NewFileSet(), parser.SkipObjectResolution)) {
		if !strings.Contains(string(text), "["+name+"]") {
			t.Errorf("provider/providertest/layer.go does not name %s", name)
		}
	}
}

// abilityFiles declare the optional interfaces.
var abilityFiles = []string{
	"optional.go", "layer/pool/report.go", "layer/registry/reconciliation.go", "layer/session/spec.go", "layer/workspace/spec.go",
}

// abilityMethods returns the methods of the optional interfaces, by the qualified names of these:
// "atoll.Pauser", "session.Manager".
func abilityMethods(all []source) map[string][]string {
	abilities := map[string][]string{}
	for _, s := range all {
		if !slices.Contains(abilityFiles, filepath.ToSlash(s.file)) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if iface, ok := spec.Type.(*ast.InterfaceType); ok {
					name := s.ast.Name.Name + "." + spec.Name.Name
					for _, m := range iface.Methods.List {
						abilities[name] = append(abilities[name], m.Names[0].Name)
					}
				}
			}
			return true
		})
	}
	return abilities
}

// ofSandboxes are the abilities of sandboxes, processes and files.
var ofSandboxes = []string{
	"atoll.Filer", "atoll.Dialer", "atoll.Pauser", "atoll.Extender", "atoll.Snapshotter", "atoll.Meter", "atoll.ProcessLister", "atoll.Resizer", "atoll.SubFS",
}

// As walks past a layer that lacks an ability, so the layers that must see all calls on a provider
// have all abilities of providers.
func TestNothingPassesTheGuards(t *testing.T) {
	all := sources(t, token.NewFileSet(), parser.SkipObjectResolution)
	has := map[string][]string{}
	for _, s := range all {
		for _, d := range s.ast.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv != nil && !s.test {
				typ := s.pkg + " " + typeName(d.Recv.List[0].Type)
				has[typ] = append(has[typ], d.Name.Name)
			}
		}
	}
	harmless := map[string]string{"atoll.Prober": "it says whether the provider works here, and nothing of projects"}
	for ability, methods := range abilityMethods(all) {
		if slices.Contains(ofSandboxes, ability) {
			continue
		}
		for _, guard := range []string{"layer/authz provider", "layer/intercept provider"} {
			for _, name := range methods {
				if !slices.Contains(has[guard], name) && (guard == "layer/intercept provider" || harmless[ability] == "") {
					t.Errorf("%s lacks %s of %s, which callers then reach unseen", guard, name, ability)
				}
			}
		}
	}
}

// typeName returns the name of a type of the package, "" if it is another's.
func typeName(typ ast.Expr) string {
	switch typ := typ.(type) {
	case *ast.StarExpr:
		return typeName(typ.X)
	case *ast.IndexExpr:
		return typeName(typ.X)
	case *ast.Ident:
		return typ.Name
	}
	return ""
}

// embeddedIn returns the types that a struct embeds: those of pkg as methods are listed, the root's as
// "atoll.Name".
func embeddedIn(pkg string, typ ast.Expr) (types []string) {
	st, ok := typ.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range st.Fields.List {
		if len(f.Names) > 0 {
			continue
		}
		if sel, ok := f.Type.(*ast.SelectorExpr); ok {
			types = append(types, "atoll."+sel.Sel.Name)
		} else if name := typeName(f.Type); name != "" {
			types = append(types, pkg+" "+name)
		}
	}
	return types
}

// optionalName returns what typ is called if it is an optional interface, by
// name or written out; else "".
func optionalName(typ ast.Expr, optional map[string][]string) string {
	switch typ := typ.(type) {
	case *ast.SelectorExpr:
		if pkg, ok := typ.X.(*ast.Ident); ok && optional[pkg.Name+"."+typ.Sel.Name] != nil {
			return pkg.Name + "." + typ.Sel.Name
		}
	case *ast.InterfaceType:
		for _, m := range typ.Methods.List {
			for _, methods := range optional {
				if len(m.Names) == 1 && slices.Contains(methods, m.Names[0].Name) {
					return "an interface with " + m.Names[0].Name
				}
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

// The repository has sources only: no program, and nothing else of that size.
func TestNoLargeFiles(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("this is no clone: %v", err)
	}
	const most = 256 << 10
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if os.IsNotExist(err) {
			continue // it is about to be removed
		}
		if err != nil {
			t.Error(err)
		} else if info.Size() > most {
			t.Errorf("%s has %d bytes: what is built belongs into .gitignore", name, info.Size())
		}
	}
}
