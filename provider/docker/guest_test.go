//go:build linux

package docker_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// The guest's program is small, and so is the memory of an idle guest.
func TestGuestSize(t *testing.T) {
	const mostBytes, mostMemory = 12 << 20, 15 << 10 // KiB
	p := open(t)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	if _, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if program, err := testenv.Guest(); err != nil || len(program) > mostBytes {
		t.Errorf("the guest's program has %d bytes, %v, want %d at most", len(program), err, mostBytes)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/%d/status", engine.Pid, inspectSandbox(t, p, sb).Container.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	memory := 0
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(rest, &memory)
		}
	}
	if memory == 0 || memory > mostMemory {
		t.Errorf("the guest has %d KiB in memory, want %d at most", memory, mostMemory)
	}
}

func inspectSandbox(t *testing.T, p *docker.Provider, sb atoll.Sandbox) client.ContainerInspectResult {
	t.Helper()
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.ContainerInspect(t.Context(), optionsOf(p).Prefix+"-session-"+sb.ID(), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The engine's user can remove the volume of the guest's program while no sandbox exists; the
// next one gets another.
func TestGuestIsPruned(t *testing.T) {
	p := open(t)
	defer p.Close()
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		sb, err := p.Create(t.Context(), &atoll.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Remove(context.Background(), atoll.RemoveVolumes())
		if _, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
		mounts := inspectSandbox(t, p, sb).Container.Mounts
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
		for _, m := range mounts {
			if m.Destination != "/.atoll" {
				continue
			}
			if _, err := c.VolumeRemove(t.Context(), m.Name, client.VolumeRemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The container of a default sandbox has no privileges.
func TestHardened(t *testing.T) {
	p := open(t)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	c := inspectSandbox(t, p, sb).Container
	h := c.HostConfig
	if h.Privileged || h.NetworkMode != "none" || h.PidMode != "" || h.IpcMode == "host" || len(h.Binds) > 0 || len(h.Devices) > 0 {
		t.Errorf("privileged %v, network %q, pid %q, ipc %q, binds %q, devices %v", h.Privileged, h.NetworkMode, h.PidMode, h.IpcMode, h.Binds, h.Devices)
	}
	if strings.Join(h.CapDrop, " ") != "ALL" || !strings.Contains(strings.Join(h.SecurityOpt, " "), "no-new-privileges") {
		t.Errorf("cap drop %q, security %q", h.CapDrop, h.SecurityOpt)
	}
	if h.Memory != int64(atoll.DefaultMemory) || h.PidsLimit == nil || *h.PidsLimit <= 0 {
		t.Errorf("memory %d, processes %v", h.Memory, h.PidsLimit)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} { // even for root inside
		out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", "grep ^" + set + ": /proc/self/status; cat /proc/self/status | grep NoNewPrivs"}})
		if err != nil || !strings.Contains(string(out), "0000000000000000") || !strings.Contains(string(out), "NoNewPrivs:\t1") {
			t.Errorf("%s: %q, %v", set, out, err)
		}
	}
}

// A provider reaches the guest directly on this machine and another through the engine. Both see
// the same processes.
func TestDirectAndEngineConnections(t *testing.T) {
	near := open(t)
	defer near.Close()
	opts := optionsOf(near)
	path := strings.TrimPrefix(opts.Host, "unix://")
	opts.Host, opts.Dial = "", func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	far, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	sb, err := near.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	begun, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", "echo begun; exec sleep 600"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := far.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	found, err := other.Process(t.Context(), begun.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Signal(t.Context(), atoll.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string]atoll.Process{"directly": begun, "through the engine": found} {
		exit, err := p.Wait(t.Context())
		if err != nil || exit.Signal != atoll.SIGTERM {
			t.Errorf("%s: %+v, %v", what, exit, err)
		}
	}
}

// The guest answers programs that the engine executes, and no programs of the sandbox.
func TestGuestAnswersEngineOnly(t *testing.T) {
	const ping = `\0\2\0\1\0\0\0\0\0\0\0\1` // a ping of yamux, which replies with as many bytes
	const acknowledged = "\x00\x02\x00\x02"
	p := open(t)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	made, err := c.ExecCreate(t.Context(), inspectSandbox(t, p, sb).Container.ID, client.ExecCreateOptions{
		Cmd: []string{docker.GuestPath, "connect"}, User: "0:0", AttachStdin: true, AttachStdout: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.ExecAttach(t.Context(), made.ID, client.ExecAttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Conn.Write([]byte("\x00\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 8+12) // with the engine's frame header
	if _, err := io.ReadFull(stream.Reader, answer); err != nil || string(answer[8:12]) != acknowledged {
		t.Fatalf("a program that the engine executes gets the answer %q, %v", answer, err)
	}
	for _, user := range []string{"", "1000"} {
		for _, command := range []string{
			"(printf '%b' '" + ping + "'; sleep 1) | /.atoll/atoll-guest connect",
			"printf '%b' '" + ping + "' >/tmp/ping-$$; (" + docker.GuestPath + " connect </tmp/ping-$$ &) ; sleep 1", // its parent has gone
		} {
			out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", command}, User: user})
			if strings.Contains(string(out), acknowledged) { // an error message is fine
				t.Errorf("as %q, %s: the guest answers %q, %v", user, command, out, err)
			}
		}
	}
}

// The guest survives programs that use up the process limit. Its runtime would exit if it could
// not create a thread.
func TestGuestSurvivesForkBomb(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{Resources: atoll.Resources{Processes: 100}})
	const bomb = "while :; do sh -c 'sleep 1000' & done 2>/dev/null" // it ends when the shell cannot fork
	if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", bomb}}); err == nil {
		t.Error("the fork bomb ended without an error")
	}
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			_, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"true"}})
			if err != nil && atoll.KindOf(err) != atoll.ErrExhausted {
				t.Errorf("Exec: %v", err)
			}
			_ = atoll.WriteFile(t.Context(), sb, "f", make([]byte, 64<<10), 0) // its process may fail to start
		})
	}
	all.Wait()
	st, err := sb.Status(t.Context())
	if err != nil || st.State != atoll.StateRunning {
		t.Errorf("the sandbox is %s: %s, %v; want it to run", st.State, st.Reason, err)
	}
}

// A heldContext counts the functions that wait for its end. Package context uses its AfterFunc.
type heldContext struct {
	context.Context
	done chan struct{}
	held atomic.Int64
}

func (c *heldContext) Done() <-chan struct{} { return c.done }

func (c *heldContext) AfterFunc(func()) (stop func() bool) {
	c.held.Add(1)
	var once sync.Once
	return func() bool {
		once.Do(func() { c.held.Add(-1) })
		return true
	}
}

// Many commands with the same context leave behind no functions in it, and no connections,
// goroutines or descriptors.
func TestCommandsLeakNothing(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{})
	runShell(t, sb, "true")
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	goroutines, fds := runtime.NumGoroutine(), descriptors()
	ctx := &heldContext{Context: context.WithoutCancel(t.Context()), done: make(chan struct{})}
	for range 200 {
		p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"true"}})
		if err == nil {
			_, err = p.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "resources of 200 commands", func() error {
		if g, f, h := runtime.NumGoroutine(), descriptors(), ctx.held.Load(); g > goroutines+5 || f > fds+2 || h > 5 {
			return fmt.Errorf("%d goroutines and %d descriptors, before %d and %d, and %d functions wait for the context", g, f, goroutines, fds, h)
		}
		return nil
	})
}

// If a program is killed while it installs the guest, the sweep removes its container later.
func TestRemoveInstallers(t *testing.T) {
	p := openForTest(t)
	sb := createSandbox(t, p, atoll.Spec{})
	c, err := client.New(client.WithHost(engine.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	left, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: busybox, Labels: docker.InstallerLabels(p)}})
	if err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		_, err := c.ContainerInspect(t.Context(), left.ID, client.ContainerInspectOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	if err := docker.RemoveInstallers(t.Context(), p, time.Now().Add(-time.Minute)); err != nil || !there() {
		t.Errorf("a new installer exists: %v (%v), want true", there(), err)
	}
	if err := docker.RemoveInstallers(t.Context(), p, time.Now().Add(time.Minute)); err != nil || there() {
		t.Errorf("an old installer exists: %v (%v), want false", there(), err)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateRunning {
		t.Errorf("the sandbox is %v, %v", st.State, err)
	}
}
