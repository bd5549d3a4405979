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

// allowedImports lists the packages of this repository that each of its packages may import, with
// the reasons. All packages may import the root. The test fails for a package that is not listed, and
// for an allowed import that is not used.
var allowedImports = map[string]map[string]string{
	".": {},

	"docs":                            {},
	"internal/awsclient":              {},
	"internal/endpoint":               {},
	"internal/program":                {},
	"agent/tools/settings":            {},
	"storage/store/postgres/settings": {},
	"storage/store/dynamo/settings":   {"internal/endpoint": "checking of endpoints"},
	"internal/retry":                  {},
	"provider/internal/cgroup":        {"internal/retry": "a group that its last processes still use"},
	"provider/internal/supervised": {
		"internal/egress":                         "faults in a network policy before the start",
		"internal/secretsource":                   "values of secrets, and their placeholders",
		"internal/treecopy":                       "the files of /work from a snapshot",
		"provider/internal/sweeper":               "sweeping of expired sandboxes",
		"server/api/client":                       "the client of supervisors",
		"provider/internal/cgroup":                "limits that the host enforces",
		"internal/fsutil":                         "records of snapshots, the lock of a creation",
		"provider/internal/watchhub":              "Watch",
		"provider/internal/supervised/files":      "the work directory of a stopped sandbox",
		"provider/internal/supervised/supervisor": "supervisors and their jobs",
		"provider/internal/supervised/statedir":   "the state directory",
		"internal/userdb":                         "users of a sandbox",
		"internal/lazyfs":                         "tracking the use of files",
		"provider/internal/volume":                "checking of volumes",
	},
	"provider/internal/supervised/files": {"internal/dirfs": "directories of the host"},
	"provider/internal/hostroot": {
		"internal/userdb":  "the machine's accounts",
		"internal/process": "variables of an environment",
	},
	"provider/internal/hostroot/hostroottest": {},
	"provider/internal/supervised/supervisedtest": {
		"internal/testing/testenv":              "time limits, and what tests need",
		"provider/internal/supervised/statedir": "paths in the state directory",
	},
	"provider/internal/imagestore": {
		"internal/userdb":                       "users of images",
		"machine/image":                         "root file systems from images",
		"provider/internal/supervised":          "the provider, and the users of images",
		"provider/internal/supervised/statedir": "records of sandboxes",
	},
	"provider/internal/supervised/supervisor": {
		"internal/secretsource":                 "the program that reads secrets in stores",
		"internal/gcdelay":                      "the end of a command's delay",
		"server/api":                            "the API that supervisors serve",
		"provider/internal/cgroup":              "usage, and out-of-memory kills",
		"internal/idletracker":                  "idle tracking",
		"provider/internal/supervised/statedir": "its sandbox's record and locks",
		"internal/process":                      "ended main processes",
		"internal/fsutil":                       "the list of refusals in a file",
		"internal/treecopy":                     "the files of snapshots",
		"internal/socket":                       "the sockets of a supervisor",
	},
	"provider/internal/supervised/statedir": {
		"internal/treecopy":        "whole snapshots",
		"internal/fsutil":          "records, locks, removals",
		"provider/internal/volume": "volumes",
	},
	"internal/process": {"internal/fsutil": "output of ended processes"},
	"internal/dirfs": {
		"internal/lazyfs":    "opening a directory for each confined call",
		"internal/tarstream": "holes and notes in tar streams",
	},
	"internal/tarstream":         {},
	"internal/fsutil":            {},
	"internal/gitignore":         {},
	"provider/internal/watchhub": {},
	"internal/idletracker":       {},
	"internal/keymutex":          {},
	"internal/mcpconfig":         {},
	"internal/gcdelay":           {},
	"provider/internal/guestproc": {
		"internal/dirfs":           "files on volumes",
		"internal/process":         "ended main processes",
		"internal/lazyfs":          "files behind the guest",
		"provider/internal/volume": "volumes behind a caretaker",
	},
	"internal/mux":                {},
	"internal/suggest":            {},
	"internal/socket":             {},
	"provider/internal/steps":     {},
	"provider/internal/sweeper":   {},
	"internal/userdb":             {},
	"internal/lazyfs":             {},
	"provider/internal/guestconn": {},
	"internal/interpreter":        {},
	"internal/procgroup": {
		"internal/process":     "processes of this machine",
		"internal/interpreter": "the error for a missing interpreter",
	},
	"provider/internal/volume": {"internal/fsutil": "locks, removal of sandbox files"},
	"internal/reservedip":      {},
	"internal/terminal":        {},
	"internal/printable":       {},
	"internal/usernet": {
		"internal/egress":     "the entries of a policy",
		"internal/gateway":    "the names in TLS and HTTP",
		"internal/reservedip": "reserved addresses in disguise",
	},
	"internal/gateway": {
		"internal/duplex": "responses before the end of a request",
		"internal/egress": "the rules of requests",
		"internal/fsutil": "the file of the certificate authority",
	},
	"internal/egress": {},
	"internal/agentgit": {
		"internal/printable": "messages of git, which have names of files",
	},
	"internal/trust": {},
	"internal/secretsource": {
		"internal/fsutil":  "files that only their owner can read",
		"internal/program": "the program that reads stores",
	},
	"internal/secretstore": {
		"internal/awsclient":    "HTTP clients for AWS",
		"internal/secretsource": "being its program",
	},
	"internal/testing/testworld": {
		"internal/gateway":         "certificates of its server",
		"internal/testing/testenv": "a process of its own",
	},
	"internal/duplex":            {},
	"internal/testing/check":     {},
	"internal/testing/testmodel": {},
	"internal/testing/testsession": {
		"storage/store/sqlite": "the store on one machine",
		"provider/local":       "sandboxes for tests",
		"layer/session":        "sessions",
	},
	"internal/testing/testagent": {},
	"internal/testing/testenv":   {},
	"internal/testing/teststore": {
		"layer/session":                   "sessions and scopes",
		"storage/store/sqlite":            "the store on one machine",
		"internal/testing/testenv":        "the PostgreSQL server for tests",
		"storage/store":                   "stores for tests",
		"storage/store/postgres":          "a second store for tests",
		"storage/store/postgres/settings": "the shortest lease",
	},
	"internal/testing/webclient": {"internal/testing/testenv": "the libraries of web pages"},
	"internal/testing/tests3":    {"internal/testing/testenv": "servers for tests"},
	"internal/testing/hostile":   {},
	"internal/testing/testimage": {"internal/testing/testenv": "a static busybox to put into images"},
	"provider/internal/inprocess": {
		"internal/dirfs":             "the files of a sandbox",
		"internal/fsutil":            "its records and their locks",
		"provider/internal/watchhub": "Watch",
		"internal/process":           "its processes",
		"internal/lazyfs":            "opening files for each call",
		"provider/internal/volume":   "its volumes",
	},
	"provider/internal/hostprocess": {
		"internal/process":            "their environment",
		"internal/procgroup":          "starting and ending them",
		"provider/internal/inprocess": "it is a backend",
	},
	"internal/testing/testagent/agenttest": {},

	"internal/tartree":  {},
	"internal/treecopy": {"internal/tarstream": "holes of files"},

	"machine/image": {
		"internal/retry":      "repeated calls",
		"internal/tartree":    "saving images as archives",
		"internal/fsutil":     "the removal of root file systems",
		"internal/reservedip": "addresses that a registry must not redirect to",
	},
	"machine/image/bundle": {
		"internal/fsutil":  "locks, atomic writes, removals",
		"internal/tartree": "disks from images",
		"machine/vm":       "the commands that guests run",
	},
	"storage/objectstore": {"internal/fsutil": "locks between programs, errors of full disks"},
	"storage/objectstore/s3": {
		"storage/objectstore": "the interface that it implements",
		"internal/awsclient":  "HTTP clients for AWS",
		"internal/endpoint":   "checking of endpoints",
	},
	"storage/filesync": {
		"storage/objectstore": "versions in object storage",
		"internal/gitignore":  "the rules of .atollignore",
	},
	"storage/objectstore/objectstoretest": {
		"storage/objectstore":      "the interface that it checks",
		"internal/testing/testenv": "timeouts for slow machines",
	},

	"machine/vm": {"internal/fsutil": "locks, atomic writes"},
	"machine/vm/vmtest": {
		"server/api/client":        "the API of the guest",
		"machine/guest":            "the guest in machines",
		"internal/testing/testenv": "timeouts for slow machines",
		"machine/vm":               "the interface that it checks",
	},
	"machine/vm/qemu": {
		"machine/vm/internal/child": "the processes of machines",
		"internal/fsutil":           "atomic writes of probe results",
		"internal/mux":              "multiplexing of a serial port",
		"internal/socket":           "socket pairs for QEMU",
		"machine/vm":                "the machines",
	},
	"machine/vm/internal/child": {"machine/vm": "console logs"},
	"machine/vm/vz": {
		"machine/vm":                "the driver interface",
		"machine/vm/internal/child": "the process of a machine, and its console",
	},
	"machine/vm/wsl2": {
		"internal/fsutil":           "the owners and the content of persistent directories",
		"internal/mux":              "multiplexing to the guest",
		"machine/vm":                "the driver interface",
		"machine/vm/internal/child": "the process of the stream",
	},
	"internal/testing/testcluster": {
		"internal/testing/testenv":   "programs for tests",
		"internal/testing/testimage": "the images of its pods",
	},
	"internal/testing/testcluster/kube":             {},
	"internal/testing/testengine/dagger/distconsts": {},
	"internal/testing/testengine": {
		"internal/testing/testenv":   "programs for tests",
		"internal/testing/testimage": "the images of its containers",
	},
	"provider/plugin": {
		"server/api":                 "the wire protocol",
		"server/api/client":          "the client",
		"internal/secretref":         "settings that are secrets",
		"internal/process":           "processes of backends",
		"provider/internal/watchhub": "Watch of backends",
		"internal/program":           "finding its program",
	},
	"provider/auto": {
		"provider/plugin":    "the program atoll",
		"server/api/client":  "a running server",
		"internal/fsutil":    "the state directory",
		"internal/secretref": "the token",
	},
	"internal/secretref":    {},
	"internal/guestprogram": {},
	"internal/pagecache":    {},
	"internal/engineprogram": {
		"internal/fsutil":    "a file that only this user writes",
		"internal/pagecache": "the program in large pages",
	},
	"provider/kubernetes/settings": {},
	"provider/modal/settings":      {"internal/secretref": "the token"},
	"agent/jobs/dagger/settings":   {},
	"agent/jobs/remote": {
		"server/api": "errors of the wire format",
		"agent/jobs": "the backend",
	},
	"provider/internal/remote": {
		"internal/keymutex":           "a mutex for each sandbox",
		"machine/guest":               "the output of main processes",
		"provider/internal/guestconn": "a shared connection to the guest",
		"provider/internal/guestproc": "processes and files without a guest",
		"provider/internal/steps":     "steps of a creation",
		"provider/internal/sweeper":   "sweeping of expired sandboxes",
		"provider/internal/volume":    "names of data volumes",
	},
	"provider/kubernetes": {
		"provider/plugin":              "running as a plugin",
		"provider/kubernetes/settings": "the settings",
		"machine/guest":                "the guest in pods",
		"provider/internal/watchhub":   "Watch",
		"provider/internal/steps":      "steps of a creation",
		"provider/internal/sweeper":    "sweeping of expired sandboxes",
		"provider/internal/guestconn":  "a shared connection to the guest",
		"provider/internal/volume":     "names of data volumes, and the removal of projects",
		"provider/internal/remote":     "the engine of providers at a service",
	},
	"provider/modal": {
		"internal/retry":              "repeated calls",
		"internal/keymutex":           "a mutex for each fetched object",
		"internal/secretref":          "reading of small files",
		"internal/guestprogram":       "the guest program",
		"provider/plugin":             "running as a plugin",
		"provider/modal/settings":     "the settings",
		"machine/guest":               "the guest in sandboxes",
		"provider/internal/watchhub":  "Watch",
		"provider/internal/steps":     "steps of a creation",
		"provider/internal/sweeper":   "sweeping of expired sandboxes",
		"provider/internal/guestconn": "a shared connection to the guest",
		"provider/internal/volume":    "names of data volumes, and the removal of projects",
		"provider/internal/remote":    "the engine of providers at a service",
	},
	"internal/testing/fakewsl": {
		"internal/fsutil":          "atomic writes of records",
		"internal/testing/testenv": "timeouts for slow machines",
	},
	"internal/testing/fakemodal": {
		"internal/fsutil":          "removal of files in volumes",
		"internal/testing/testenv": "timeouts for slow machines",
	},
	"internal/testing/fakevmm": {
		"internal/testing/testenv": "timeouts for slow machines",
		"machine/guest":            "sockets without a machine",
		"internal/dirfs":           "files of a stopped sandbox",
		"machine/vm":               "virtual machines",
		"machine/vm/qemu":          "machines for containers",
	},
	"machine/vm/firecracker": {
		"internal/mux":              "the vsock protocol",
		"machine/vm":                "the driver interface",
		"machine/vm/internal/child": "its process",
	},
	"agent/output": {
		"agent": "types of conversations",
	},
	"layer/trace": {
		"layer/intercept": "interception of calls",
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
	},
	"layer/limit": {},
	"layer/system": {
		"layer/intercept": "the calls that have a spec, or return one",
		"layer/session":   "the spec of a session's sandbox",
		"server/auth":     "the account of the caller",
	},
	"layer/authz": {
		"internal/egress": "which entries of a network policy open only public addresses",
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
		"server/auth":     "accounts and keys",
		"storage/store":   "the store of keys",
	},
	"layer/audit": {
		"layer/intercept": "interception of calls",
		"layer/session":   "sessions and scopes",
		"server/auth":     "accounts and keys",
		"storage/store":   "the store of events",
	},
	"layer/router": {
		"layer/workspace":   "workspaces",
		"layer/session":     "sessions and scopes",
		"layer/registry":    "reconciliation",
		"layer/pool":        "reports on pools",
		"internal/keymutex": "a mutex for each id and name",
	},
	"layer/workspace": {"internal/fsutil": "records, locks, removals"},
	"provider/secret": {},
	"agent/uistream": {
		"agent":        "events of turns",
		"agent/output": "the types of events",
	},
	"agent/frontmatter": {},
	"agent/recipe": {
		"internal/egress":  "entries of network policies",
		"internal/suggest": "hints for misspelt keys and names",
	},
	"agent/hooks": {
		"internal/retry": "repeated calls",
		"agent":          "types of conversations",
	},
	"agent/template": {
		"internal/suggest": "suggestions for misspelt keys and names of templates",
		"agent/hooks":      "hooks",
	},
	"agent/conversation": {
		"internal/retry":      "turns whose sandbox cannot be reached yet",
		"layer/audit":         "redaction of secrets in stderr",
		"server/auth":         "accounts and keys",
		"agent":               "types of conversations",
		"storage/objectstore": "the history of turns, next to versions of files",
		"agent/output":        "parsing of agents' output",
		"internal/keymutex":   "a mutex for each sandbox",
		"agent/hooks":         "the hooks of templates",
		"storage/filesync":    "versions of files",
		"storage/store":       "its store",
		"agent/template":      "templates",
	},
	"layer/pool": {
		"layer/registry":    "reconciliation",
		"internal/keymutex": "a mutex for each name",
		"storage/store":     "its store",
	},
	"layer/session": {
		"internal/retry":       "repeated calls",
		"internal/idletracker": "idle tracking",
		"internal/keymutex":    "a mutex for each session",
		"internal/lazyfs":      "tracking the use of files",
		"storage/store":        "its store",
	},
	"agent/jobs": {},
	"agent/jobs/jobstest": {
		"agent/jobs":               "the interface that it checks",
		"internal/testing/testenv": "timeouts for slow machines",
	},
	"agent/jobs/dagger": {
		"agent/jobs/dagger/settings": "the settings",
		"agent/jobs/remote":          "its address",
		"internal/guestprogram":      "the guest in containers",
		"provider/plugin":            "running as a plugin",
		"agent/jobs":                 "the backend interface",
		"agent/frontmatter":          "names of local images",
		"machine/guest":              "the guest in containers",
		"internal/fsutil":            "atomic writes of the guest, locks of jobs",
	},
	"agent/tools": {
		"layer/session":        "sessions and scopes",
		"server/auth":          "accounts and keys",
		"agent/jobs":           "job runners of sandbox_run",
		"agent/frontmatter":    "agent files",
		"internal/keymutex":    "a mutex for each file",
		"agent/tools/settings": "defaults",
	},
	"server/mcp": {
		"layer/session": "sessions and scopes",
		"server/auth":   "accounts and keys",
		"server/origin": "web pages that may use the tools",
		"agent/tools":   "the tools",
	},
	"layer/registry": {
		"internal/retry":    "records that another program holds",
		"server/auth":       "accounts and keys",
		"internal/keymutex": "a mutex for each record",
		"provider/secret":   "secrets of sandboxes",
		"storage/store":     "its store",
	},
	"storage/store": {
		"server/auth": "accounts and keys",
		"agent":       "types of conversations",
	},
	"storage/store/storetest": {
		"layer/session":            "sessions and scopes",
		"server/auth":              "accounts and keys",
		"agent":                    "types of conversations",
		"storage/store":            "the interface that it checks",
		"internal/testing/testenv": "timeouts for slow machines",
	},
	"storage/store/dynamo": {
		"internal/retry":                "repeated calls",
		"agent":                         "types of conversations",
		"internal/awsclient":            "HTTP clients for AWS",
		"storage/store":                 "the interface that it implements",
		"storage/store/dynamo/settings": "defaults and checks",
	},
	"storage/store/postgres": {
		"internal/retry":                  "the outcome of a transaction is asked for again",
		"storage/store/sqlstore":          "the queries of its tables",
		"storage/store":                   "table definitions",
		"storage/store/postgres/settings": "defaults and checks",
	},
	"server/api": {
		"server/api/internal/wire": "bodies, errors and streams",
		"internal/duplex":          "responses of ports before the end of a request",
		"layer/workspace":          "workspaces",
		"layer/session":            "sessions and scopes",
		"layer/registry":           "reconciliation",
		"layer/pool":               "reports on pools",
		"storage/store":            "records and interfaces",
		"server/auth":              "accounts and keys",
		"server/origin":            "web pages that may use the API",
		"agent":                    "types of conversations",
		"agent/uistream":           "the protocol of chat clients",
		"internal/fsutil":          "reading the token file",
		"internal/socket":          "sockets with long paths",
		"internal/terminal":        "terminals without a client",
	},
	"server/api/client": {
		"server/api/internal/wire": "bodies, errors and streams",
		"layer/workspace":          "workspaces",
		"layer/session":            "sessions and scopes",
		"layer/registry":           "reconciliation",
		"layer/pool":               "reports on pools",
		"storage/store":            "audit events",
		"server/auth":              "keys",
	},
	"server/api/internal/wire": {
		"layer/workspace": "workspaces in replies",
		"layer/session":   "sessions in replies",
		"storage/store":   "audit events in replies",
		"server/auth":     "keys in replies",
		"internal/socket": "sockets with long paths",
	},
	"server/sshd": {
		"server/auth":        "accounts and keys",
		"internal/fsutil":    "the host key, and the permissions of authorized keys",
		"internal/terminal":  "terminals without a client",
		"internal/printable": "text from sandboxes on a terminal",
	},
	"server/openapi": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/pool":      "reports on pools",
		"agent":           "types of conversations",
		"agent/uistream":  "types of chat clients",
		"server/api":      "the routes",
	},
	"machine/guest": {
		"internal/trust":       "stores of certificates",
		"internal/inroot":      "mounts below the root of the machine",
		"agent/jobs":           "job runners",
		"server/api":           "the API of the guest",
		"server/api/client":    "the client",
		"internal/dirfs":       "files of the system it runs in",
		"internal/idletracker": "idle tracking",
		"internal/mux":         "multiplexing of requests",
		"internal/userdb":      "users of that system",
		"internal/process":     "its processes",
		"internal/socket":      "the peer's user, and inherited sockets",
		"internal/procgroup":   "starting and stopping engines",
		"internal/tartree":     "replacing programs in running machines",
		"internal/lazyfs":      "access to files in another process",
		"machine/vm":           "ports of virtual machines",
	},

	"provider/local": {
		"provider/internal/hostprocess": "processes of this machine, shared with native on macOS",
		"provider/internal/inprocess":   "the life of sandboxes, shared with mock",
	},
	"provider/mock": {
		"provider/internal/inprocess": "the life of sandboxes, shared with local",
		"internal/process":            "scripted processes",
		"internal/interpreter":        "the error for a missing interpreter",
	},
	"provider/docker": {
		"internal/retry":              "repeated calls",
		"machine/guest":               "the guest in containers",
		"internal/dirfs":              "names on volumes",
		"internal/fsutil":             "locks, and records of images",
		"internal/guestprogram":       "the default guest",
		"provider/internal/watchhub":  "Watch",
		"provider/internal/guestproc": "records of main processes",
		"internal/userdb":             "owners of the work directory",
		"internal/process":            "ended main processes, processes without a guest",
		"internal/procgroup":          "marks for finding descendants",
		"internal/socket":             "the engine's process",
		"provider/internal/steps":     "steps of a creation",
		"provider/internal/sweeper":   "sweeping of expired sandboxes",
		"internal/lazyfs":             "access to files through guests",
		"provider/internal/guestconn": "a shared connection to the guest",
		"provider/internal/volume":    "names of volumes",
	},
	"provider/vmdocker": {
		"internal/retry":             "repeated calls",
		"internal/fsutil":            "atomic writes of notes, removal of projects",
		"provider/internal/watchhub": "Watch",
		"internal/keymutex":          "a mutex for each project",
		"internal/lazyfs":            "access to files through a helper machine",
		"provider/docker":            "the engines in its machines",
		"machine/vm":                 "machine sizes, the engine's port",
	},
	"provider/gvisor": {
		"internal/fsutil":                         "locks of files",
		"machine/image":                           "root file systems from images",
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/hostroot":              "the environment of the machine's programs",
		"provider/internal/imagestore":            "the images of sandboxes",
		"provider/internal/supervised":            "supervisors of sandboxes",
		"provider/internal/supervised/supervisor": "job options",
		"internal/userdb":                         "users of a sandbox",
		"provider/gvisor/internal/plan":           "the job of a supervisor",
		"provider/gvisor/engine":                  "its own supervisors, without the tag embedengine",
		"internal/engineprogram":                  "the program of supervisors, with it",
	},
	"provider/gvisor/engine": {
		"provider/gvisor/internal/runsc":  "the main function of sentry and gofer",
		"provider/gvisor/internal/sentry": "the supervisor of a sentry",
	},
	"provider/gvisor/internal/plan": {
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/supervised/supervisor": "names of steps",
	},
	"provider/gvisor/internal/sentry": {
		"internal/gateway":                        "the certificate authority of the network",
		"provider/internal/supervised/sandboxnet": "the network's policy and secrets",
		"provider/gvisor/internal/plan":           "the job",
		"provider/gvisor/internal/pid1":           "the first process",
		"provider/internal/elf":                   "the program that sets the hostname",
		"internal/fsutil":                         "the list of processes in a snapshot",
		"internal/interpreter":                    "the error for a missing interpreter",
		"machine/guest":                           "access to files behind the guest",
		"internal/dirfs":                          "files behind the guest",
		"provider/internal/hostroot":              "the machine's root file system",
		"provider/internal/supervised/files":      "names of files behind the guest",
		"provider/internal/supervised/supervisor": "the engine interface",
		"internal/userdb":                         "users of the sandbox",
		"internal/process":                        "its processes",
		"internal/socket":                         "inherited sockets",
		"internal/usernet":                        "the network",
		"provider/gvisor/internal/overlay":        "the root file system after a stop",
		"provider/internal/cgroup":                "the memory that is left, and reports of the kernel",
	},
	"provider/gvisor/internal/runsc": {
		"internal/gcdelay":                 "the end of a command's delay",
		"provider/gvisor/internal/filters": "seccomp programs that are compiled before",
		"provider/gvisor/internal/umount":  "gVisor's smallest helper",
	},
	"provider/gvisor/internal/filters":          {},
	"provider/gvisor/internal/filters/generate": {"provider/gvisor/internal/filters": "its function"},
	"provider/gvisor/internal/umount":           {},
	"provider/gvisor/internal/pid1":             {"provider/internal/syslist": "lists of system calls"},
	"provider/gvisor/internal/overlay":          {},

	"internal/inroot":           {},
	"provider/internal/elf":     {},
	"provider/internal/syslist": {"provider/internal/elf": "the executable of the interpreter"},
	"provider/native": {
		"internal/userdb":                         "users of a sandbox",
		"machine/image":                           "root file systems from images",
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/hostroot":              "the environment of the machine's programs",
		"provider/internal/imagestore":            "images of sandboxes",
		"provider/internal/supervised":            "its sandboxes have supervisors",
		"provider/internal/supervised/supervisor": "jobs",
		"provider/native/internal/plan":           "the job of a supervisor",
		"provider/native/internal/quota":          "whether the file system limits directories",
		"provider/native/engine":                  "its own supervisors, without the tag embedengine",
		"internal/engineprogram":                  "the program of supervisors, with it",
		"provider/native/internal/mac":            "the provider on macOS",
	},
	"provider/native/internal/mac": {
		"internal/fsutil":                   "the removal of temporary directories",
		"provider/internal/hostprocess":     "processes of this machine",
		"provider/internal/inprocess":       "the life of sandboxes",
		"provider/native/internal/seatbelt": "walls",
	},
	"provider/native/internal/seatbelt": {},
	"provider/native/engine":            {"provider/native/internal/keeper": "the supervisor"},
	"provider/native/internal/plan": {
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/supervised/supervisor": "names of steps",
	},
	"provider/native/internal/keeper": {
		"internal/gateway":                        "the certificate authority of the network",
		"provider/internal/supervised/sandboxnet": "the network's policy and secrets",
		"internal/fsutil":                         "what changes take up on disk",
		"internal/dirfs":                          "files that the guest serves",
		"internal/inroot":                         "mounts below the root of the sandbox",
		"internal/interpreter":                    "the error for a missing interpreter",
		"internal/process":                        "the table of processes",
		"internal/socket":                         "the connection to the guest",
		"internal/userdb":                         "users of a sandbox",
		"internal/usernet":                        "the network of a sandbox",
		"machine/guest":                           "access to files behind the guest",
		"provider/internal/cgroup":                "pauses, and out-of-memory kills",
		"provider/internal/hostroot":              "the host's file system as an image",
		"provider/internal/supervised/files":      "files on volumes",
		"provider/internal/supervised/supervisor": "it is the supervisor's engine",
		"provider/internal/syslist":               "errors of calls inside",
		"provider/native/internal/landlock":       "a wall around files",
		"provider/native/internal/pid1":           "the first process",
		"provider/native/internal/plan":           "the job of a supervisor",
		"provider/native/internal/quota":          "limits of the disk",
		"provider/native/internal/seccomp":        "the filter of system calls",
		"provider/native/internal/vfork":          "the start of the first process",
	},
	"provider/native/internal/quota/quotatest": {},
	"provider/native/internal/pid1":            {"provider/internal/syslist": "lists of system calls"},
	"provider/native/internal/vfork":           {"provider/internal/syslist": "lists of system calls"},
	"provider/native/internal/quota":           {},
	"provider/native/internal/seccomp":         {},
	"provider/native/internal/landlock":        {},

	"provider/providertest": {
		"internal/testing/testworld": "servers for a gateway",
		"layer/intercept":            "interception of calls",
		"layer/workspace":            "workspaces",
		"layer/session":              "sessions and scopes",
		"layer/registry":             "reconciliation",
		"layer/pool":                 "reports on pools",
		"provider/secret":            "the hash of a secret",
		"internal/testing/testenv":   "timeouts for slow machines",
	},

	"provider/microvm": {
		"internal/userdb":                         "the user that exists everywhere",
		"machine/image/bundle":                    "boot bundles",
		"provider/internal/cgroup":                "limits that the host enforces",
		"provider/internal/supervised":            "supervisors of sandboxes",
		"provider/internal/supervised/supervisor": "job options",
		"provider/internal/supervised/statedir":   "records of images",
		"provider/microvm/internal/vmengine":      "the supervisor of a machine",
		"machine/vm":                              "machine sizes",
		"machine/vm/firecracker":                  "the jailer",
	},
	"provider/internal/supervised/sandboxnet": {
		"internal/gateway":                        "the certificate authority",
		"internal/inroot":                         "files of the root file system",
		"internal/secretsource":                   "values of secrets",
		"internal/trust":                          "stores of certificates",
		"internal/usernet":                        "the network of a sandbox",
		"provider/internal/supervised/supervisor": "the job",
	},
	"provider/microvm/internal/vmengine": {
		"provider/internal/supervised/sandboxnet": "the network's policy and secrets",
		"layer/workspace":                         "workspaces",
		"server/api/client":                       "the API of the guest",
		"machine/guest":                           "its configuration",
		"machine/image/bundle":                    "the guest's path in a root archive",
		"internal/fsutil":                         "removal of machine files",
		"provider/internal/supervised/supervisor": "the engine interface",
		"internal/process":                        "output of the main process",
		"internal/socket":                         "the network's connections",
		"internal/usernet":                        "the network",
		"internal/lazyfs":                         "access to files through the guest",
		"machine/vm":                              "virtual machines",
		"machine/vm/firecracker":                  "a driver",
		"machine/vm/qemu":                         "another driver",
		"machine/vm/vz":                           "the driver on macOS",
		"machine/vm/wsl2":                         "the driver on Windows",
	},
	"config": {
		"agent/frontmatter":               "images by name",
		"agent/jobs/dagger/settings":      "the plugin's settings",
		"agent/template":                  "the directory of templates",
		"agent/tools/settings":            "defaults of the tools",
		"internal/fsutil":                 "atomic writes of notes",
		"internal/program":                "programs of plugins",
		"internal/secretref":              "settings that are secrets",
		"internal/suggest":                "suggestions for misspelt keys",
		"layer/pool":                      "the layer around each provider",
		"layer/registry":                  "records of sandboxes",
		"layer/session":                   "the layer around all providers",
		"layer/workspace":                 "the layer around all providers",
		"provider/kubernetes/settings":    "the plugin's settings",
		"provider/modal/settings":         "the plugin's settings",
		"server/api/client":               "checking of server URLs",
		"server/auth":                     "accounts and keys",
		"server/origin":                   "checking of origins",
		"storage/filesync":                "versions in object storage",
		"storage/store/dynamo/settings":   "the checks of its settings",
		"storage/store/postgres/settings": "the checks of store.url",
	},
	"config/stack": {
		"agent/conversation":     "conversations",
		"agent/frontmatter":      "images by name",
		"agent/hooks":            "hooks",
		"agent/jobs":             "job runners",
		"agent/jobs/remote":      "the remote job runner",
		"agent/template":         "the directory of templates",
		"agent/tools":            "the options of the tools of agents",
		"config":                 "what it opens",
		"internal/fsutil":        "atomic writes of notes",
		"internal/guestprogram":  "the guest program",
		"layer":                  "types of its methods",
		"layer/audit":            "the caller of each operation",
		"layer/authz":            "the outermost layer, and API keys",
		"layer/limit":            "the layer around each provider",
		"layer/pool":             "the layer around each provider",
		"layer/registry":         "records of sandboxes",
		"layer/router":           "combining the configured providers",
		"layer/session":          "the layer around all providers",
		"layer/system":           "the outermost layer",
		"layer/trace":            "the layer around every provider",
		"layer/workspace":        "the layer around all providers",
		"machine/image":          "options of the store",
		"machine/image/bundle":   "boot bundles",
		"machine/vm":             "sizes of project machines",
		"machine/vm/firecracker": "checking for KVM, the jailer",
		"machine/vm/qemu":        "checking for KVM",
		"machine/vm/vz":          "checking for KVM",
		"machine/vm/wsl2":        "checking for KVM",
		"provider/docker":        "constructors of all providers",
		"provider/gvisor":        "constructors of all providers",
		"provider/local":         "constructors of all providers",
		"provider/microvm":       "constructors of all providers",
		"provider/mock":          "constructors of all providers",
		"provider/native":        "constructors of all providers",
		"provider/plugin":        "providers in plugins",
		"provider/vmdocker":      "constructors of all providers",
		"server/api":             "the options of links to ports",
		"server/auth":            "accounts and keys",
		"storage/filesync":       "versions in object storage",
		"storage/objectstore":    "directories as object storage",
		"storage/objectstore/s3": "service backends of jobs",
		"storage/store":          "the store of records and sessions",
		"storage/store/dynamo":   "a store of conversations",
		"storage/store/postgres": "a backend of the store",
		"storage/store/sqlite":   "the store on one machine",
	},
	"agent/genkit": {
		"layer/session":     "sessions and scopes",
		"agent/frontmatter": "agent files",
		"agent/tools":       "the tools",
	},
	"cmd/atoll": {
		"internal/secretsource": "values of secrets in files and stores here",
		"internal/secretstore":  "stores of secrets",
		"agent":                 "labels of the sandboxes of conversations, which prune retains",
		"agent/frontmatter":     "agent files of atoll mcp",
		"agent/recipe":          "coding agents",
		"internal/agentgit":     "repositories of coding agents",
		"agent/tools":           "the tools of mcp",
		"config":                "the configuration",
		"config/stack":          "what serves without a server",
		"docs":                  "pages of the manual for atoll help",
		"internal/pagecache":    "the client in large pages",
		"internal/dirfs":        "the local side of cp",
		"internal/fsutil":       "edits of files that people edit, too",
		"internal/gcdelay":      "a start without a collection",
		"internal/mcpconfig":    "settings of coding agents",
		"internal/printable":    "text from sandboxes on a terminal",
		"internal/program":      "atoll-server, and advice on missing programs",
		"internal/socket":       "sockets with long paths",
		"internal/tarstream":    "holes and notes in tar streams",
		"layer/authz":           "keys of links to ports",
		"layer/pool":            "reports on pools",
		"layer/registry":        "reconciliation",
		"layer/session":         "sessions and scopes",
		"layer/trace":           "metrics of serve",
		"layer/workspace":       "workspaces",
		"machine/image/bundle":  "atoll image build and pull",
		"provider/plugin":       "the suite, and serving as a plugin",
		"server/api":            "client and server",
		"server/api/client":     "the client",
		"server/auth":           "accounts and keys",
		"server/mcp":            "atoll mcp, and /mcp of serve",
		"server/openapi":        "API documentation of serve",
		"server/origin":         "web pages that may use serve",
		"server/sshd":           "the SSH server",
		"storage/filesync":      "file sync",
		"storage/store":         "records and interfaces",
	},
	"packaging/compress":          {"packaging/internal/programs": "compression of the guest"},
	"packaging/image":             {"packaging/internal/programs": "builds for other platforms"},
	"packaging/internal/outdir":   {},
	"packaging/internal/programs": {},
	"packaging/release":           {"packaging/internal/outdir": "replacement of its output", "packaging/internal/programs": "builds for other platforms"},
	"packaging/site":              {"packaging/internal/outdir": "replacement of its output"},
	"cmd/atoll-kubernetes": {
		"provider/plugin":     "its main function",
		"provider/kubernetes": "the provider of the plugin",
	},
	"cmd/atoll-provider-test": {
		"provider/plugin":       "the tested package",
		"provider/providertest": "the conformance suite",
	},
	"cmd/atoll-modal": {
		"provider/plugin": "its main function",
		"provider/modal":  "the provider of the plugin",
	},
	"cmd/atoll-dagger": {
		"agent/jobs/dagger": "the job runner of the plugin",
		"provider/plugin":   "its main function",
	},
	"cmd/atoll-guest":  {"machine/guest": "the supervisor's program"},
	"cmd/atoll-engine": {"provider/gvisor/engine": "its processes"},
	"cmd/atoll-native": {"provider/native/engine": "its processes"},
	"bench": {
		"layer/registry":    "reconciliation",
		"layer/pool":        "reports on pools",
		"server/api/client": "benchmarks of the API", "storage/objectstore/s3": "measured code", "internal/dirfs": "measured code",
		"storage/filesync": "measured code", "machine/image/bundle": "the boot bundle", "internal/mux": "the handshake with the guest",
	},
	"bench/runsc":                    {},
	"examples/library":               {"provider/gvisor": "the provider of the example"},
	"examples/workflow":              {},
	"examples/provider/atoll-gohost": {"provider/plugin": "the library of the example"},
	"storage/store/sqlstore": {
		"layer/session": "sessions and scopes",
		"agent":         "types of conversations",
		"storage/store": "records and interfaces",
	},
	"storage/store/sqlite": {
		"storage/store/sqlstore": "the queries of its tables",
		"storage/store":          "records and interfaces",
		"internal/fsutil":        "locks of files",
	},
	"agent":         {},
	"server/auth":   {},
	"server/origin": {},
	"layer":         {},
	"layer/intercept": {
		"layer/workspace": "workspaces",
		"layer/session":   "sessions and scopes",
		"layer/registry":  "reconciliation",
		"layer/pool":      "reports on pools",
	},
}

// dependencies lists the modules that this one depends on, with the reasons and the packages that may
// import them; nil means all except the root. Tests may import more.
var dependencies = map[string]struct {
	why string
	in  []string
}{
	"github.com/aws/aws-sdk-go-v2":            {"clients of AWS, and their credentials", []string{"storage/objectstore/s3", "internal/awsclient", "internal/secretstore", "storage/store/dynamo"}},
	"github.com/aws/smithy-go":                {"errors of those clients", []string{"storage/objectstore/s3", "internal/awsclient", "storage/store/dynamo"}},
	"github.com/cenkalti/backoff":             {"pauses that grow between attempts", []string{"internal/retry"}},
	"github.com/coder/websocket":              {"WebSocket streams, also to Kubernetes", []string{"server/api", "server/api/client", "server/api/internal/wire", "provider/kubernetes"}},
	"dagger.io/dagger":                        {"Dagger's own SDK", []string{"agent/jobs/dagger"}},
	"github.com/danielgtaylor/huma":           {"OpenAPI from the code", []string{"server/openapi"}},
	"github.com/containerd/errdefs":           {"kinds of engine errors", []string{"provider/docker"}},
	"github.com/distribution/reference":       {"names of images in the engine's form", []string{"provider/docker"}},
	"github.com/modelcontextprotocol/go-sdk":  {"MCP over streams and HTTP", []string{"bench", "examples/workflow", "server/mcp"}},
	"github.com/moby/moby":                    {"the official client of Docker Engines", []string{"internal/testing/testengine", "provider/docker"}},
	"github.com/creack/pty":                   {"terminals on every Unix", []string{"internal/process", "internal/procgroup"}},
	"github.com/firebase/genkit/go":           {"agents on Genkit; a module of its own keeps it out of this one", []string{"agent/genkit"}},
	"github.com/cli/browser":                  {"the browser of each system", []string{"cmd/atoll"}},
	"github.com/swaggest/swgui":               {"Swagger UI, which shows the API", []string{"server/openapi"}},
	"github.com/fsnotify/fsnotify":            {"one watch on a directory sees all changes of records", []string{"provider/internal/supervised", "provider/vmdocker"}},
	"github.com/google/jsonschema-go":         {"schemas of tools for MCP", []string{"agent/genkit", "agent/tools"}},
	"mvdan.cc/sh/v3":                          {"scripts of a shell, in which the audit log looks for secrets", []string{"layer/audit"}},
	"github.com/google/go-containerregistry":  {"OCI images and registries", []string{"layer/authz", "machine/image", "internal/testing/fakemodal", "internal/testing/testcluster", "internal/testing/testengine", "internal/testing/testimage", "packaging/image", "packaging/release", "provider/docker", "provider/modal"}},
	"github.com/hashicorp/yamux":              {"many connections over one stream", []string{"internal/mux"}},
	"github.com/klauspost/compress":           {"layers and the embedded guest in zstd, gzip twice as fast", []string{"machine/image", "machine/image/bundle", "internal/guestprogram", "internal/engineprogram", "packaging/internal/programs", "packaging/release"}},
	"github.com/mikelolasagasti/xz":           {"Debian's packages, and kernels packed with filters that other such libraries lack", []string{"machine/image/bundle"}},
	"github.com/pierrec/lz4":                  {"kernels in lz4's first format", []string{"machine/image/bundle"}},
	"github.com/jackc/pgx":                    {"PostgreSQL, without libpq", []string{"storage/store/postgres"}},
	"github.com/miekg/dns":                    {"the DNS server of a sandbox's network", []string{"internal/testing/testworld", "internal/usernet"}},
	"github.com/opencontainers/runtime-spec":  {"the format of containers for gVisor", []string{"provider/gvisor/internal/runsc", "provider/gvisor/internal/sentry"}},
	"github.com/rogpeppe/go-internal":         {"diffs of edits, in the answers of tools", []string{"agent/tools"}},
	"github.com/pelletier/go-toml":            {"settings of Modal and Codex", []string{"internal/mcpconfig", "provider/modal"}},
	"github.com/tailscale/hujson":             {"settings of coding agents, which are JSON with comments", []string{"internal/mcpconfig"}},
	"github.com/prometheus/client_golang":     {"/metrics", []string{"layer/trace"}},
	"github.com/modal-labs/libmodal/modal-go": {"Modal's protocol, from its own SDK", []string{"internal/testing/fakemodal", "provider/modal"}},
	"google.golang.org/grpc":                  {"the transport of Modal's protocol", []string{"internal/testing/fakemodal", "provider/modal"}},
	"google.golang.org/protobuf":              {"the messages of Modal's protocol", []string{"internal/testing/fakemodal", "provider/modal"}},
	"github.com/spf13/cobra":                  {"commands, help, completion; those of Kubernetes's programs", []string{"cmd/atoll", "internal/testing/testcluster/kube"}},
	"github.com/spf13/pflag":                  {"cobra's flags", []string{"cmd/atoll"}},
	"github.com/vishvananda/netlink":          {"interfaces and routes in a namespace", []string{"internal/testing/testworld", "internal/usernet", "machine/guest"}},
	"github.com/mdlayher/vsock":               {"sockets between a virtual machine and its host", []string{"machine/guest", "machine/vm/qemu"}},
	"go.opentelemetry.io/otel":                {"traces and metrics", []string{"layer/trace"}},
	"go.uber.org/goleak":                      {"detection of leaked goroutines", []string{"internal/testing/testenv", "storage/objectstore/objectstoretest", "provider/providertest"}},
	"go.yaml.in/yaml":                         {"the configuration file, front matter, and templates", []string{"config", "agent/frontmatter", "agent/recipe", "agent/template"}},
	"golang.org/x/crypto":                     {"SSH", []string{"server/sshd"}},
	"golang.org/x/crypto/x509roots/fallback":  {"root certificates for systems without any, such as images from scratch", []string{"cmd/atoll"}},
	"golang.org/x/mod":                        {"versions of releases", []string{"cmd/atoll"}},
	"golang.org/x/net":                        {"host names in DNS form, names of headers, and reading HTML", []string{"internal/egress", "packaging/site"}},
	"golang.org/x/time/rate":                  {"limits of requests and bytes", []string{"internal/egress", "internal/gateway"}},
	"golang.org/x/sync":                       {"groups of goroutines, and calls that callers share", []string{"bench", "internal/gateway", "layer/authz", "machine/image", "provider/kubernetes", "storage/filesync"}},
	"golang.org/x/tools":                      {"types of packages for other systems", []string{"internal/testing/check"}},
	"golang.org/x/term":                       {"raw mode of terminals", []string{"cmd/atoll"}},
	"golang.org/x/sys":                        {"system calls that package syscall lacks", nil},
	"go.etcd.io/etcd":                         {"the database of a cluster for tests, in a module of its own", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/api":                              {"types of Kubernetes", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/apimachinery":                     {"common types of Kubernetes", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/client-go":                        {"the official client of Kubernetes", []string{"internal/testing/testcluster", "provider/kubernetes"}},
	"k8s.io/component-base":                   {"running Kubernetes's programs, in that module", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/kubectl":                          {"kubectl, in that module", []string{"internal/testing/testcluster/kube"}},
	"k8s.io/kubernetes":                       {"a cluster's other programs, in that module", []string{"internal/testing/testcluster/kube"}},
	"modernc.org/sqlite":                      {"a database in one file, without cgo", []string{"storage/store/sqlite"}},
	"gvisor.dev/gvisor": {"the application kernel, and its network stack", []string{
		"bench/runsc", "internal/usernet", "provider/gvisor/internal/filters", "provider/gvisor/internal/runsc", "provider/gvisor/internal/sentry",
	}},
	"github.com/aws/aws-sdk-go-v2/service/dynamodb":       {"the client of DynamoDB", []string{"storage/store/dynamo"}},
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager": {"the client of AWS Secrets Manager", []string{"internal/secretstore"}},
	"github.com/zalando/go-keyring":                       {"the keyrings of desktops", []string{"internal/secretstore"}},
	"github.com/aws/aws-sdk-go-v2/service/s3":             {"the client of services that speak S3", []string{"storage/objectstore/s3"}},
}

// testSupport lists the packages for tests, which may import package testing.
var testSupport = []string{"machine/vm/vmtest", "storage/objectstore/objectstoretest", "agent/jobs/jobstest", "provider/internal/hostroot/hostroottest", "provider/internal/supervised/supervisedtest", "provider/native/internal/quota/quotatest", "provider/providertest", "storage/store/storetest", "internal/testing/testagent/agenttest", "internal/testing/testcluster", "internal/testing/testengine", "internal/testing/testenv", "internal/testing/testimage", "internal/testing/tests3", "internal/testing/testsession", "internal/testing/teststore", "internal/testing/testworld", "internal/testing/webclient"}

// A source is one Go file of this repository, in any of its modules.
type source struct {
	pkg  string // path below the module, "." for the root
	file string
	test bool
	ast  *ast.File
}

// sources parses all Go files, for all operating systems.
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

// imports returns the imports of each package without those of its tests.
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

func TestImports(t *testing.T) {
	have := imports(t)
	for pkg, list := range have {
		allowed, ok := allowedImports[pkg]
		if !ok {
			t.Errorf("%s: a new package: add its imports to allowedImports, with reasons", pkg)
			continue
		}
		for _, path := range list {
			to, ours := inModule(path)
			if !ours || to == "." {
				continue
			}
			if _, ok := allowed[to]; !ok {
				t.Errorf("%s imports %s: not allowed; if necessary, add it to allowedImports with a reason", pkg, to)
			}
		}
		for to := range allowed {
			if !slices.Contains(list, module+"/"+to) {
				t.Errorf("%s no longer imports %s: remove it from allowedImports", pkg, to)
			}
		}
	}
	for pkg := range allowedImports {
		if _, ok := have[pkg]; !ok {
			t.Errorf("%s is in allowedImports, but does not exist", pkg)
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
			dependency := ""
			for prefix := range dependencies {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > len(dependency) {
					dependency = prefix
				}
			}
			if dependency == "" {
				t.Errorf("%s imports %s: a new dependency: add it to dependencies with a reason", pkg, path)
				continue
			}
			used[dependency+" "+pkg] = true
			if in := dependencies[dependency].in; in != nil && !slices.Contains(in, pkg) {
				t.Errorf("%s imports %s, which is for %s only", pkg, path, strings.Join(dependencies[dependency].in, ", "))
			}
		}
	}
	for prefix, dependency := range dependencies {
		for _, pkg := range dependency.in {
			if !used[prefix+" "+pkg] {
				t.Errorf("%s no longer imports %s: remove it from dependencies", pkg, prefix)
			}
		}
	}
}

// suite is the program of the conformance suite.
const suite = "cmd/atoll-provider-test"

// The binaries contain no test code: neither this module's nor package testing, which registers flags.
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

// A layer hides the wrapped value from a type assertion, so only the helpers of the root assert
// optional interfaces.
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

// As skips a layer with only some of the methods of an optional interface, so a layer has all of them
// or none.
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
	// inspect returns the methods of a type, except those of the root's layers, and whether it is a layer.
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

// Layer of the conformance suite checks that a layer hides no ability, so it must know all abilities.
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
	"optional.go", "network.go", "layer/pool/report.go", "layer/registry/reconciliation.go", "layer/session/spec.go", "layer/workspace/spec.go",
}

// abilityMethods returns the methods of the optional interfaces, by their qualified names:
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

// sandboxAbilities are the abilities of sandboxes, processes and files.
var sandboxAbilities = []string{
	"atoll.Filer", "atoll.Dialer", "atoll.Pauser", "atoll.Extender", "atoll.Snapshotter", "atoll.Meter", "atoll.Refuser", "atoll.NetworkLogger", "atoll.NetworkUpdater", "atoll.ProcessLister", "atoll.Resizer", "atoll.SubFS",
}

// As skips a layer that lacks an ability, so the layers that must see all calls on a provider
// implement all abilities of providers.
func TestGuardsImplementAllAbilities(t *testing.T) {
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
	harmless := map[string]string{"atoll.Prober": "a Probe reveals nothing about projects"}
	for ability, methods := range abilityMethods(all) {
		if slices.Contains(sandboxAbilities, ability) {
			continue
		}
		for _, guard := range []string{"layer/authz provider", "layer/intercept provider"} {
			for _, name := range methods {
				if !slices.Contains(has[guard], name) && (guard == "layer/intercept provider" || harmless[ability] == "") {
					t.Errorf("%s lacks %s of %s, so callers bypass the layer", guard, name, ability)
				}
			}
		}
	}
}

// typeName returns the name of a type of the same package, or "".
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

// embeddedIn returns the types that a struct embeds: those of pkg as "pkg Name", those of the root as
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

// optionalName returns the name of typ, or a description of it, if it is an optional interface, or
// else "".
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

// The documentation of a package is in one file.
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

// The repository has no binaries and no other large files.
func TestNoLargeFiles(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("not a git clone: %v", err)
	}
	const most = 256 << 10
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if os.IsNotExist(err) {
			continue // deleted, but not committed
		}
		if err != nil {
			t.Error(err)
		} else if info.Size() > most {
			t.Errorf("%s has %d bytes: add build results to .gitignore", name, info.Size())
		}
	}
}
