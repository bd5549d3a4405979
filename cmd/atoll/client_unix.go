//go:build client && unix

package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/program"
	"github.com/seed46cd37a8/atoll/internal/socket"
)

// commands are the commands of the client.
var commands = []command{
	{"run", groupRun, newRun},
	{"exec", groupRun, newExec},
	{"shell", groupRun, newShell},
	{"attach", groupRun, newAttach},
	{"logs", groupRun, newLogs},
	{"ps", groupRun, newPs},
	{"kill", groupRun, newKill},
	{"cp", groupRun, newCp},
	{"port-forward", groupRun, newPortForward},
	{"open", groupRun, newOpen},

	{"create", groupLife, newCreate},
	{"start", groupLife, newStart},
	{"stop", groupLife, newStop},
	{"pause", groupLife, newPause},
	{"resume", groupLife, newResume},
	{"extend", groupLife, newExtend},
	{"rm", groupLife, newRm},
	{"ls", groupLife, newLs},
	{"inspect", groupLife, newInspect},
	{"stats", groupLife, newStats},
	{"watch", groupLife, newWatch},
	{"wait", groupLife, newWait},
	{"secret", groupLife, newSecret},
	{"reconcile", groupLife, newReconcile},

	{"pull", groupKeep, newPull},
	{"snapshot", groupKeep, newSnapshot},
	{"volume", groupKeep, newVolume},
	{"workspace", groupKeep, newWorkspace},
	{"session", groupKeep, newSession},
	{"pool", groupKeep, newPool},
	{"project", groupKeep, newProject},
	{"key", groupKeep, newKey},
	{"audit", groupKeep, newAudit},
	{"prune", groupKeep, newPrune},

	{"version", groupSystem, newVersion},
}

// runOther does nothing: programs that use the providers of this machine start atoll-server.
func runOther([]string) (exit int, done bool) { return 0, false }

// A span is empty: a command with a trace runs in atoll-server.
type span struct{}

// injectTrace is nil: a client has no traces.
var injectTrace func(context.Context, http.Header)

// endSpan does nothing.
func (a *app) endSpan(error) {}

// findRoot returns the command atoll with the command of args. It leaves others to atoll-server, and returns only if that
// fails.
func (a *app) findRoot(args []string) (*cobra.Command, error) {
	if root := newPartialRoot(a, namedCommands(args)); hasCommand(root, args) {
		return root, nil
	}
	return nil, a.execServer()
}

// acceptTimeout is the time that a server on this machine may take to accept a connection.
const acceptTimeout = 5 * time.Second

// beginCommand leaves the command to atoll-server if no server runs, or if the command has a trace. It returns only if
// that fails, or if there is nothing to leave.
func (a *app) beginCommand(cmd *cobra.Command) error {
	if groupOf(cmd) == groupSystem {
		return nil
	}
	if slices.ContainsFunc(a.env, isTraceVariable) {
		return a.execServer()
	}
	cfg, err := a.readConfig()
	if err != nil {
		return err
	}
	if cfg.URL == "" && socket.Short(cfg.Socket(), tryServer) != nil {
		return a.execServer()
	}
	a.useConfig(cfg)
	return nil
}

// tryServer returns nil if a server accepts connections at the socket.
func tryServer(path string) error {
	conn, err := net.DialTimeout("unix", path, acceptTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}

// isTraceVariable reports whether a variable of the environment concerns traces.
func isTraceVariable(kv string) bool {
	return strings.HasPrefix(kv, "OTEL_") || strings.HasPrefix(kv, "TRACEPARENT=")
}

// serveSelf leaves the command to atoll-server, which has providers. It returns only if that fails.
func (a *app) serveSelf(context.Context, *config.Config) (*connection, error) {
	return nil, a.execServer()
}

// execServer replaces this program with atoll-server, which runs the same command. It returns only if that fails.
func (a *app) execServer() error {
	path, err := program.Find("server")
	if err != nil {
		return atoll.Errorf("", "", atoll.ErrUnavailable, "this needs the program atoll-server, which is neither beside atoll nor in PATH: install both, from one release")
	}
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, append(os.Environ(), clientVersion+"="+buildVersion().firstLine(), clientProgram+"="+self))
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "run %s: %w", path, err)
}
