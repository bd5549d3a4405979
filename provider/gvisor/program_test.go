//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// programEnv makes this test's binary run one of its programs instead: inside a sandbox,
// where it is mounted, or on the host, as a process to be killed.
const programEnv = "ATOLL_TEST_PROGRAM"

// programs holds the programs of this binary, by name.
var programs = map[string]func(args []string) error{
	"dial":     dialProgram,
	"flip":     flipProgram,
	"churn":    churnProgram,
	"create":   createProgram,
	"make":     makeProgram,
	"once":     onceProgram,
	"power":    powerProgram,
	"remove":   removeProgram,
	"snapshot": snapshotProgram,
	"start":    startProgram,
	"suite":    suiteProgram,
	"xattr":    xattrProgram,
}

// runProgram runs the program that the environment asks for, if any.
func runProgram() {
	name := os.Getenv(programEnv)
	if name == "" {
		return
	}
	if err := programs[name](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// programDir is the directory in which a sandbox sees this binary.
const programDir = "/shelf"

// programMount returns the mount of this binary.
func programMount(t testing.TB) atoll.Mount {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return atoll.Mount{Type: atoll.MountBind, Source: exe, Target: programDir + "/program", ReadOnly: true}
}

// programCommand returns the command that runs one of the programs inside.
func programCommand(name string, args ...string) *atoll.Command {
	return &atoll.Command{Args: append([]string{programDir + "/program"}, args...), Env: []string{programEnv + "=" + name}}
}

// startOnHost starts one of the programs as a process of its own.
func startOnHost(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), programEnv+"="+name)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// dialProgram connects to a network and address and prints what it receives.
func dialProgram(args []string) error {
	conn, err := net.DialTimeout(args[0], args[1], 2*time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// flipProgram makes the name args[0] by turns a directory and a link to each of the other
// arguments, until it is killed.
func flipProgram(args []string) error {
	name := args[0]
	dir := name + ".dir"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, target := range args[1:] {
		if err := os.Symlink(target, name+".link"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	fmt.Println("flipping")
	for i := 0; ; i = (i + 1) % len(args[1:]) {
		link := name + ".link" + strconv.Itoa(i)
		for _, at := range []string{dir, link} {
			// Others may have removed either, or made the name anew.
			if at == link {
				_ = os.Symlink(args[1+i], link)
			} else {
				_ = os.Mkdir(dir, 0o755)
			}
			_ = os.RemoveAll(name)
			_ = os.Rename(at, name)
			time.Sleep(50 * time.Microsecond)
			_ = os.Rename(name, at)
		}
	}
}

// openProgram opens the provider of lab.startProvider, and returns the rest of args.
func openProgram(args []string, change ...func(*gvisor.Options)) (*gvisor.Provider, []string, error) {
	opts := gvisor.Options{Dir: args[0], RunDir: args[1], Helper: args[2], Cgroup: args[3]}
	for _, f := range change {
		f(&opts)
	}
	p, err := gvisor.New(opts)
	return p, args[4:], err
}

// churnProgram makes, uses, stops, starts and removes the sandboxes args[1:] again and
// again, until it is killed or has done args[0] rounds.
func churnProgram(args []string) error {
	p, args, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	fmt.Println("churning")
	for i := range rounds {
		if err := churnSandbox(p, args[1+i%len(args[1:])]); err != nil {
			return err
		}
	}
	return nil
}

// churnSandbox leads one sandbox through its life, while others may do the same: an error
// that is due to them is none.
func churnSandbox(p atoll.Provider, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitLimit)
	defer cancel()
	expected := func(err error) bool {
		switch atoll.KindOf(err) {
		case "", atoll.ErrNotFound, atoll.ErrAlreadyExists, atoll.ErrStopped, atoll.ErrConflict:
			return true
		}
		return false
	}
	spec := atoll.Spec{ID: id, Name: "n" + id[:8]}
	if p.Info().Caps.MemoryLimit {
		spec.Resources.Memory = 1 << 30
	}
	sb, err := p.Create(ctx, &spec)
	if !expected(err) {
		return fmt.Errorf("create: %w", err)
	}
	if err != nil {
		if sb, err = p.Get(ctx, id); err != nil {
			return nil
		}
	}
	write := &atoll.Command{Args: []string{"sh", "-c", "echo work > file; echo root > /root/file"}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"exec", func() error { return atoll.Run(ctx, sb, write) }},
		{"stop", func() error { return sb.Stop(ctx, 0) }},
		{"start", func() error { return sb.Start(ctx) }},
		{"remove", func() error { return sb.Remove(ctx, atoll.RemoveVolumes()) }},
	} {
		err := step.do()
		if _, killed := errors.AsType[*atoll.ExitError](err); !expected(err) && !killed { // by another's stop
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// children returns the processes of the host whose parent is pid, by argv[0].
func children(t testing.TB, pid int) map[string]int {
	t.Helper()
	found := map[string]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parentOf(child) == pid {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			found[cString(cmdline)] = child
		}
	}
	return found
}

// isRunning reports whether there is a process pid.
func isRunning(pid int) bool { return unix.Kill(pid, 0) == nil }

// parentOf returns the parent of a process; 0 when it has gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
