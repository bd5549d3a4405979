//go:build linux

package docker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// withoutGuest sets the options for sandboxes without a guest.
func withoutGuest(opts *docker.Options) { opts.Plain, opts.Guest = true, nil }

// busyboxWithFile is busybox with the file of tinyImage: without a guest, the image needs a
// shell.
func busyboxWithFile(t testing.TB) v1.Image {
	img, err := mutate.AppendLayers(testimage.Busybox(t), testimage.Layer(t, testimage.File("file", 0o644, "text")))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestConformancePlain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestConformance tests most of it")
	}
	needEngine(t)
	groups := []string{"create", "expiry", "exec", "output", "time", "tty", "crash", "remove"}
	if testenv.RunAll() {
		// The engine's limits, mounts, events and filters are those of TestConformance.
		groups = append(groups, "tree", "restart", "escape", "exhaustion", "volumes", "watch", "caps", "pause")
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, withoutGuest) }, append(pullableOptions(t, busyboxWithFile(t)),
		// Without a guest, the provider starts, times and ends commands with the engine's API,
		// and handles starts, ends and TTLs itself. The engine's seccomp filter and init replace
		// the guest's. Such sandboxes have no files and no ports.
		providertest.Only(groups...),
		providertest.SkipRest("not different without a guest, or needs one: see TestConformance and TestSessions"),
		providertest.Slow(3), sharedGroups, providertest.Leaks(heldObjects), providertest.OtherProcess(newElsewhere(withoutGuest)),
		providertest.CrashSandbox(crashWith("SIGUSR1")), providertest.Reopen(reopen), bindsException,
		providertest.Except("escape/neither io_uring nor an unusual socket bypasses the isolation",
			"without a guest there is the engine's filter alone, and that of engines before 23 and 25 lets both pass: decision 26"),
		providertest.Except("exhaustion/calls return although a program stops all others in the sandbox",
			"Docker 20.10 holds its lock on a container until what it executes there has started, which root inside can keep from it: decision 26"))...)
}

// Commands without a guest: variables that shells do not pass on, PIDs, and processes of several
// users.
func TestPlainCommands(t *testing.T) {
	p := open(t, withoutGuest)
	defer p.Close()
	ctx := t.Context()
	sb, err := p.Create(ctx, &atoll.Spec{Env: []string{"a.b=it's", "plain=1"}, User: "1234:2345"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"env"}, Env: []string{"d-e=two words", "f=2"}})
	for _, want := range []string{"a.b=it's\n", "plain=1\n", "d-e=two words\n", "f=2\n"} {
		if err != nil || !strings.Contains("\n"+string(out), "\n"+want) {
			t.Errorf("env printed %q, %v; want %q in it", out, err, want)
		}
	}
	// Stop signals the processes of each user.
	for _, user := range []string{"", "root", "77:88"} {
		cmd := &atoll.Command{Args: []string{"sh", "-c", "trap 'echo asked; exit 3' TERM; echo $$; while :; do sleep 0.02; done"}, User: user}
		process, err := sb.Exec(ctx, cmd)
		if err != nil {
			t.Fatal(err)
		}
		awaitPrinted(t, process, "\n") // the trap is set
		defer func() {
			var text strings.Builder
			if err := process.Attach(context.Background(), &atoll.Attachment{Stdout: &text}); err != nil || !strings.HasSuffix(text.String(), "asked\n") {
				t.Errorf("the process of user %q printed %q, %v; want it to get SIGTERM", user, text.String(), err)
			}
		}()
	}
	if all, err := atoll.Processes(ctx, sb); err != nil || all[len(all)-1].PID == 0 {
		t.Errorf("Processes: %+v, %v; want PIDs", all, err)
	}
	if err := sb.Stop(ctx, time.Minute); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// If an image has no shell, its programs run. Operations that need a shell fail, and so does
// Create without a command.
func TestPlainWithoutShell(t *testing.T) {
	p := open(t, withoutGuest)
	defer p.Close()
	ctx := t.Context()
	image := serveRegistry(t).Push("program:1", testimage.Program(t, `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println(os.Args[1:])
		os.Exit(7)
	}
	time.Sleep(time.Hour)
}
`))
	if _, err := p.Create(ctx, &atoll.Spec{Image: image}); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), "/bin/sh") {
		t.Errorf("Create without a command: %v", err)
	}
	sb, err := p.Create(ctx, &atoll.Spec{Image: image, Cmd: []string{"/program"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(context.Background(), atoll.RemoveVolumes())
	res, err := atoll.Capture(ctx, sb, &atoll.Command{Args: []string{"/program", "a b"}}, 1<<10)
	if err != nil || string(res.Stdout) != "[a b]\n" || res.Code != 7 {
		t.Errorf("Capture: %+v, %v", res, err)
	}
	for name, kind := range map[string]atoll.Kind{"none": atoll.ErrCommandNotFound, "/proc": atoll.ErrExecFailed} {
		if _, err := sb.Exec(ctx, &atoll.Command{Args: []string{name}}); atoll.KindOf(err) != kind {
			t.Errorf("Exec of %s: %v, want kind %q", name, err, kind)
		}
	}
	if _, err := sb.Exec(ctx, &atoll.Command{Args: []string{"/program"}, User: "nobody-of-that-name"}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Exec as nobody: %v", err)
	}
	if _, err := sb.Exec(ctx, &atoll.Command{Args: []string{"/program"}, Timeout: 1}); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("Exec with a time limit: %v", err)
	}
	running, err := sb.Exec(ctx, &atoll.Command{Args: []string{"/program"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Signal(ctx, atoll.SIGTERM); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("Signal: %v", err)
	}
	main, err := sb.Process(ctx, atoll.MainProcess)
	if err == nil {
		err = main.Signal(ctx, atoll.SIGTERM)
	}
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := main.Wait(ctx); err != nil || exit.Code != 143 && exit.Code != 2 { // a Go program exits with 2
		t.Errorf("the main process: %+v, %v", exit, err)
	}
}

// Two providers, with and without guests, serve each other's sandboxes. A sandbox has the caps
// that it was created with.
func TestPlainAndGuestInOneEngine(t *testing.T) {
	withGuest := open(t)
	defer withGuest.Close()
	opts := optionsOf(withGuest)
	opts.Plain = true
	without, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	for maker, other := range map[*docker.Provider]*docker.Provider{withGuest: without, without: withGuest} {
		sb, err := maker.Create(t.Context(), &atoll.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		same, err := other.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		st, err := same.Status(t.Context())
		if err != nil || st.Caps != maker.Info().Caps || st.Caps == other.Info().Caps {
			t.Errorf("Status has caps %+v, %v; want those of its creation", st.Caps, err)
		}
		if _, err := atoll.Files(same).Stat(t.Context(), "."); (atoll.KindOf(err) == atoll.ErrUnsupported) == st.Caps.Files {
			t.Errorf("Stat: %v, with cap files %v", err, st.Caps.Files)
		}
		for _, step := range []func() error{func() error { return same.Stop(t.Context(), 0) }, func() error { return same.Start(t.Context()) }} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		for _, handle := range []atoll.Sandbox{sb, same} {
			if out, err := atoll.Output(t.Context(), handle, &atoll.Command{Args: []string{"echo", "works"}}); err != nil || string(out) != "works\n" {
				t.Errorf("echo printed %q, %v", out, err)
			}
		}
		if err := same.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
}
