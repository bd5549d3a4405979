//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// peerMethods are ways to create a sandbox up to its first byte, and to run a command in a running one.
type peerMethods struct{ create, exec []method }

// A peerMaker prepares a compared program. The caller must call the closer unless it is nil, also after an error.
type peerMaker func(context.Context) (p peerMethods, closer func() error, err error)

// setUpPeers prepares the compared programs that are installed. The caller must call the closers, also after an error.
func (b *bench) setUpPeers(ctx context.Context, makers ...peerMaker) (p peerMethods, closers []func() error, err error) {
	for _, add := range makers {
		more, closer, err := add(ctx)
		if closer != nil {
			closers = append(closers, closer)
		}
		var missing missingError
		if errors.As(err, &missing) {
			b.table.missing = append(b.table.missing, missing.Error())
			continue
		}
		if err != nil {
			return p, closers, err
		}
		p.create = append(p.create, more.create...)
		p.exec = append(p.exec, more.exec...)
	}
	return p, closers, nil
}

// A missingError says why bench cannot measure something on this machine.
type missingError string

func (m missingError) Error() string { return string(m) }

// echoArgs is the command that all programs run.
var echoArgs = []string{"echo", "x"}

// untilFirst runs a program and returns the time until its first byte. It calls after, if not nil, when
// the program has ended.
func untilFirst(cmd *exec.Cmd, after func() error) (time.Duration, error) {
	stderr := &atoll.Tail{Limit: 2 << 10}
	cmd.Stderr, cmd.WaitDelay = stderr, waitLimit
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(out, make([]byte, 1))
	took := time.Since(start)
	_, drain := io.Copy(io.Discard, out)
	if err := errors.Join(err, drain, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	if after != nil {
		return took, after()
	}
	return took, nil
}

// untilEnd runs a program and returns how long it took.
func untilEnd(cmd *exec.Cmd) (time.Duration, error) {
	stderr := &atoll.Tail{Limit: 2 << 10}
	cmd.Stderr, cmd.WaitDelay = stderr, waitLimit
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return time.Since(start), nil
}

// atollPeers returns the methods of Atoll: the API client with a server, and the command line.
func (b *bench) atollPeers(ctx context.Context, s *server) (p peerMethods, _ func() error, err error) {
	spec := &atoll.Spec{Image: "dir:" + b.root}
	live, err := s.Create(ctx, spec)
	if err != nil {
		return p, nil, err
	}
	create := func(ctx context.Context) (time.Duration, error) { return s.createToFirstByte(ctx, spec) }
	execute := func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		_, err := atoll.Output(ctx, live, &atoll.Command{Args: echoArgs})
		return time.Since(start), err
	}
	cli := func(ctx context.Context, state string, args ...string) *exec.Cmd {
		return b.atollCommand(ctx, state, append(args, echoArgs...)...)
	}
	executeByCLI := func(ctx context.Context) (time.Duration, error) {
		return untilEnd(cli(ctx, s.state, "exec", live.ID(), "--"))
	}
	run := []string{"run", "--image", "dir:" + b.root, "--"}
	alone := filepath.Join(b.dir, "alone")
	p.create = []method{
		{viaAPI, create},
		{viaCLI, func(ctx context.Context) (time.Duration, error) { return untilFirst(cli(ctx, s.state, run...), nil) }},
		{viaAlone, func(ctx context.Context) (time.Duration, error) { return untilFirst(cli(ctx, alone, run...), nil) }},
		{viaWarm, func(ctx context.Context) (time.Duration, error) {
			took, err := s.createStocked(ctx, &atoll.Spec{}, true)
			// The server makes another sandbox now, which must not slow down the next method.
			return took, errors.Join(err, waitUntil(ctx, func() error { return s.checkStocked(ctx) }))
		}},
		{viaExec, executeByCLI},
	}
	p.exec = []method{
		{viaAPI, execute},
		{viaCLI, executeByCLI},
		{viaDurable, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			_, err := atoll.Output(ctx, live, &atoll.Command{Args: echoArgs, Durable: true})
			return time.Since(start), err
		}},
		{viaShell, func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			_, err := atoll.Output(ctx, live, &atoll.Command{Args: []string{"sh", "-c", shellLoop}})
			return time.Since(start) / shellRuns, err
		}},
	}
	return p, func() error { return live.Remove(context.WithoutCancel(ctx), atoll.RemoveVolumes()) }, nil
}

// createToFirstByte creates a sandbox, runs a command in it, and removes it. It returns the time until
// the first byte of output.
func (s *server) createToFirstByte(ctx context.Context, spec *atoll.Spec) (time.Duration, error) {
	var first firstByte
	start := time.Now()
	sb, err := s.Create(ctx, spec)
	if err != nil {
		return 0, err
	}
	err = atoll.Run(ctx, sb, &atoll.Command{Args: echoArgs, Stdout: &first})
	return first.at.Sub(start), errors.Join(err, sb.Remove(ctx, atoll.RemoveVolumes()))
}

// shellRuns is the number of times that a shell inside runs echo. Its time is gVisor's part of the time
// of a command.
const shellRuns = 20

var shellLoop = fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/echo x; i=$((i+1)); done", shellRuns)

// betweenLines returns the mean time between two lines of the output of cmd.
func betweenLines(cmd *exec.Cmd) (time.Duration, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var first, last time.Time
	lines := 0
	for s := bufio.NewScanner(out); s.Scan(); lines++ {
		last = time.Now()
		if lines == 0 {
			first = last
		}
	}
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	if lines < 2 {
		return 0, fmt.Errorf("%d lines of output", lines)
	}
	return last.Sub(first) / time.Duration(lines-1), nil
}

// A bareRuntime is the command line of bare gVisor with its state.
type bareRuntime struct {
	b       *bench
	dir     string
	program string
}

// newRunsc returns bare gVisor with its state in a directory of that name.
func newRunsc(b *bench, name string) bareRuntime {
	return bareRuntime{b, filepath.Join(b.dir, "runsc-"+name), b.runsc}
}

// copyRunsc returns newRunsc with a copy of the program that is written at once, as Atoll writes its engine: the kernel then
// has it in large pages, and it starts faster than the file of a linker or an installation.
func copyRunsc(b *bench, name string) (bareRuntime, error) {
	r := newRunsc(b, name)
	data, err := os.ReadFile(b.runsc)
	if err != nil {
		return r, err
	}
	r.program = r.dir + ".program"
	return r, os.WriteFile(r.program, data, 0o755)
}

// makeCommand returns a command of runsc: without limits and network, with an overlay in memory.
func (r bareRuntime) makeCommand(ctx context.Context, args ...string) *exec.Cmd {
	common := []string{"--root=" + r.dir, "--network=none", "--overlay2=root:memory"}
	if os.Geteuid() != 0 {
		common = append(common, "--rootless", "--ignore-cgroups")
	}
	return exec.CommandContext(ctx, r.program, append(common, args...)...)
}

// removeAll removes the container "live".
func (r bareRuntime) removeAll() error {
	_, err := untilEnd(r.makeCommand(context.Background(), "delete", "--force", "live"))
	// runsc leaves the network namespace of its gofers mounted.
	_ = unix.Unmount(filepath.Join(r.dir, "null-netns"), unix.MNT_DETACH)
	return err
}

// bindMount returns a mount of a directory.
func bindMount(source, target, mode string) map[string]any {
	return map[string]any{"destination": target, "type": "bind", "source": source, "options": []any{"rbind", mode}}
}

// writeBundle writes a bundle and returns its directory.
func (r bareRuntime) writeBundle(name, root string, args []string, mounts ...map[string]any) (string, error) {
	dir := filepath.Join(r.dir+"-bundles", name)
	all := []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}}
	for _, m := range mounts {
		all = append(all, m)
	}
	spec := map[string]any{
		"ociVersion": "1.0.0",
		"root":       map[string]any{"path": root},
		"process":    map[string]any{"args": args, "cwd": "/", "env": []string{"PATH=/bin"}, "user": map[string]any{"uid": 0, "gid": 0}},
		"mounts":     all,
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "mount"}, map[string]any{"type": "network"},
			map[string]any{"type": "ipc"}, map[string]any{"type": "uts"},
		}},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}

// runscPeers returns the methods of bare gVisor: without limits and volumes, with its overlay in
// memory.
func (b *bench) runscPeers(ctx context.Context) (p peerMethods, _ func() error, err error) {
	r := newRunsc(b, "peers")
	once, err := r.writeBundle("once", b.root, echoArgs)
	if err != nil {
		return p, nil, err
	}
	forever, err := r.writeBundle("forever", b.root, []string{"sleep", "86400"})
	if err != nil {
		return p, nil, err
	}
	// No pipes: the sandbox inherits the streams, so that a pipe would stay open as long as the sandbox.
	if err := r.makeCommand(ctx, "run", "--detach", "--bundle", forever, "live").Run(); err != nil {
		return p, r.removeAll, fmt.Errorf("runsc run: %w", err)
	}
	large, err := copyRunsc(b, "peers")
	if err != nil {
		return p, r.removeAll, err
	}
	var n atomic.Int64
	runOnce := func(r bareRuntime) func(ctx context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			return untilFirst(r.makeCommand(ctx, "run", "--bundle", once, fmt.Sprintf("once-%d", n.Add(1))), nil)
		}
	}
	p.create = []method{{bareRunsc, runOnce(r)}, {largeRunsc, runOnce(large)}}
	p.exec = []method{
		{bareRunsc, func(ctx context.Context) (time.Duration, error) {
			return untilEnd(r.makeCommand(ctx, append([]string{"exec", "live"}, echoArgs...)...))
		}},
		{viaRunscShell, func(ctx context.Context) (time.Duration, error) {
			return betweenLines(r.makeCommand(ctx, "exec", "live", "sh", "-c", shellLoop))
		}},
	}
	return p, r.removeAll, nil
}

// bwrapPeers returns the method of bubblewrap, which isolates with namespaces alone, on the host's
// kernel.
func (b *bench) bwrapPeers(context.Context) (p peerMethods, _ func() error, err error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return p, nil, missingError("bwrap is not installed: apt-get install bubblewrap")
	}
	args := append([]string{"--unshare-all", "--bind", b.root, "/", "--proc", "/proc", "--dev", "/dev"}, echoArgs...)
	p.create = []method{{viaBwrap, func(ctx context.Context) (time.Duration, error) {
		return untilFirst(exec.CommandContext(ctx, path, args...), nil)
	}}}
	return p, nil, nil
}
