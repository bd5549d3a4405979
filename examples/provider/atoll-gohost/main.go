//go:build linux

// Command atoll-gohost is an example of a provider as a program of its own. A sandbox is a directory, and
// its processes are processes of this machine: nothing isolates them.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// info says what the provider can do. Package plugin refuses what the caps leave out.
var info = atoll.Info{
	Name:      "gohost",
	Isolation: atoll.IsolationNone, // a process can do whatever this program can do
	Version:   "1",
	Caps:      atoll.Caps{Restart: true, Durable: atoll.DurableCrash, ExitSignal: true},
}

// settings has the settings of the configuration.
type settings struct {
	Dir string `yaml:"dir"` // of the sandboxes; empty means a directory below the state directory
}

func main() {
	os.Exit(plugin.ServeBackend(info.Name, func(_ context.Context, r plugin.Request) (atoll.Info, plugin.Backend, error) {
		s := settings{Dir: filepath.Join(r.StateDir, "gohost")}
		if err := plugin.DecodeSettings(r.Settings, &s); err != nil {
			return info, nil, err
		}
		return info, &host{dir: s.Dir}, nil
	}))
}

// A host is a plugin.Backend.
type host struct {
	dir string // has a directory for each sandbox, with the sandbox's id

	mu   sync.Mutex
	last int // number of the process that was started last
}

// CreateSandbox implements plugin.Backend: it makes the work directory.
func (h *host) CreateSandbox(_ context.Context, spec *atoll.Spec) error {
	return os.MkdirAll(h.hostPath(spec, spec.Workdir), 0o700)
}

// RemoveSandbox implements plugin.Backend.
func (h *host) RemoveSandbox(_ context.Context, id string) error {
	return os.RemoveAll(filepath.Join(h.dir, id))
}

// StopSandbox implements plugin.Backend.
func (h *host) StopSandbox(_ context.Context, id string) error { return killMarked(id + "/") }

// hostPath returns the path on this machine. The work directory is below that of the sandbox; a process
// sees all other directories as they are.
func (h *host) hostPath(spec *atoll.Spec, path string) string {
	if path == spec.Workdir || strings.HasPrefix(path, spec.Workdir+"/") {
		return filepath.Join(h.dir, spec.ID, path)
	}
	return path
}

// StartProcess implements plugin.Backend.
func (h *host) StartProcess(_ context.Context, spec *atoll.Spec, cmd *atoll.Command, stdio plugin.Stdio) (plugin.Process, error) {
	h.mu.Lock()
	h.last++
	mark := fmt.Sprintf("%s/%d/", spec.ID, h.last)
	h.mu.Unlock()
	dir := h.hostPath(spec, cmd.Dir)
	if stat, err := os.Stat(dir); err != nil || !stat.IsDir() {
		return nil, atoll.Errorf("", "", atoll.ErrExecFailed, "%s: not a directory", cmd.Dir)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.hostPath(spec, spec.Workdir)}
	c := exec.Cmd{
		Path: cmd.Args[0], Args: cmd.Args, Dir: dir,
		Env:   append(append(env, cmd.Env...), markVar+"="+mark), // of two values the last one counts
		Stdin: stdio.Stdin, Stdout: stdio.Stdout, Stderr: stdio.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if !strings.Contains(c.Path, "/") {
		path, err := exec.LookPath(c.Path)
		if err != nil {
			return nil, atoll.Errorf("", "", atoll.ErrCommandNotFound, "%q: no such command", c.Path)
		}
		c.Path = path
	}
	switch err := c.Start(); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, atoll.Errorf("", "", atoll.ErrCommandNotFound, "%q: no such command", c.Path)
	case err != nil:
		return nil, atoll.E("", "", atoll.ErrExecFailed, err)
	}
	return process{&c, mark}, nil
}

// A process is a plugin.Process.
type process struct {
	cmd  *exec.Cmd
	mark string
}

// Wait implements plugin.Process.
func (p process) Wait() atoll.Exit {
	_ = p.cmd.Wait() // ProcessState has the exit
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return atoll.Exit{Code: 128 + int(status.Signal()), Signal: atoll.Signal(status.Signal())}
	}
	return atoll.Exit{Code: status.ExitStatus()}
}

// Signal implements plugin.Process.
func (p process) Signal(sig atoll.Signal) error {
	if sig == atoll.SIGKILL {
		return killMarked(p.mark)
	}
	return p.cmd.Process.Signal(syscall.Signal(sig))
}

// markVar is the variable by which killMarked finds a process and its descendants.
const markVar = "ATOLL_GOHOST"

// killMarked kills all processes with a mark that begins with prefix, until there is none.
func killMarked(prefix string) error {
	buf := make([]byte, 8<<20) // more than an environment can have
	for found := true; found; time.Sleep(time.Millisecond) {
		found = false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			env, known := readEnviron(filepath.Join("/proc", e.Name()), buf)
			marked := bytes.Contains(env, []byte(markVar+"="+prefix))
			if !known || marked && syscall.Kill(pid, syscall.SIGKILL) == nil {
				found = true
			}
		}
	}
	return nil
}

// readEnviron reads the environment of a process, which has none after its end, into buf. known is false
// in the middle of an exec, when the process has lost its old environment and has no new one yet.
func readEnviron(proc string, buf []byte) (env []byte, known bool) {
	f, err := os.Open(filepath.Join(proc, "environ"))
	if err != nil {
		return nil, true
	}
	defer f.Close()
	if n, err := f.Read(buf); err != io.EOF { // one read, because an exec between two would cut it off
		return buf[:n], true
	}
	if _, err := os.Readlink(filepath.Join(proc, "exe")); err != nil {
		return nil, true // a zombie, or a thread of the kernel
	}
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // see proc_pid_stat(5)
	if err != nil || len(fields) < 49 {
		return nil, true
	}
	begin, end := fields[47], fields[48]          // of the environment in memory
	return nil, begin == end && fields[23] != "0" // where the code begins: an exec sets this last
}
