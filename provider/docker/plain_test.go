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
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// plain opens providers whose sandboxes have no guest.
func plain(opts *docker.Options) { opts.Plain, opts.Guest = true, nil }

// withFile is busybox with the file of tiny: something has to run there.
func withFile(t testing.TB) v1.Image {
	img, err := mutate.AppendLayers(testimage.Busybox(t), testimage.Layer(t, testimage.File("file", 0o644, "text")))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestConformancePlain(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestConformance has what is common to both")
	}
	needEngine(t)
	providertest.Run(t, func(t *testing.T) atoll.Provider { return open(t, plain) }, append(pullable(t, withFile(t)),
		// Without a guest the provider starts, times and ends commands by the engine's API, and
		// sees by itself to starts, ends and TTLs; the engine's filter and init take the place
		// of the guest's. Such sandboxes have neither files nor ports.
		providertest.Only("birth", "expiry", "exec", "output", "time", "tree", "tty", "volumes", "memory", "crash", "watch", "death",
			"truth", "escape", "siege", "pause"),
		providertest.Rest("it does not differ without a guest, or needs one: TestConformance keeps it, and TestSessions"),
		providertest.Slow(3), together, providertest.Leaks(held), providertest.Elsewhere(elsewhere(plain)),
		providertest.Crash(crash("SIGUSR1")), providertest.Reopen(reopen),
		providertest.Except("escape/neither io_uring nor an unusual socket bypasses the isolation",
			"without a guest there is the engine's filter alone, and that of engines before 23 and 25 lets both pass: decision 26"),
		providertest.Except("siege/calls return although a program stops all others in the sandbox",
			"Docker 20.10 holds its lock on a container until what it executes there has started, which root inside can keep from it: decision 26"))...)
}

// What the suite cannot ask of every provider: variables that no shell passes on, the
// number of a process, users side by side, images without a shell.
func TestPlainCommands(t *testing.T) {
	p := open(t, plain)
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
	// Each user's processes are asked to end by one of his own.
	for _, user := range []string{"", "root", "77:88"} {
		cmd := &atoll.Command{Args: []string{"sh", "-c", "trap 'echo asked; exit 3' TERM; echo $$; while :; do sleep 0.02; done"}, User: user}
		process, err := sb.Exec(ctx, cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			var text strings.Builder
			if err := process.Attach(context.Background(), &atoll.Attachment{Stdout: &text}); err != nil || !strings.HasSuffix(text.String(), "asked\n") {
				t.Errorf("the process of user %q printed %q, %v; want it asked to end", user, text.String(), err)
			}
		}()
	}
	if all, err := atoll.Processes(ctx, sb); err != nil || all[len(all)-1].PID == 0 {
		t.Errorf("Processes: %+v, %v; want their numbers", all, err)
	}
	if err := sb.Stop(ctx, time.Minute); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// In an image without a shell its programs run; what a shell is needed for is
// refused, and so is a sandbox that only waits.
func TestPlainWithoutShell(t *testing.T) {
	p := open(t, plain)
	defer p.Close()
	ctx := t.Context()
	image := serve(t).Push("program:1", testimage.Program(t, `package main

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
		t.Errorf("Create of one that waits: %v", err)
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
	if exit, err := main.Wait(ctx); err != nil || exit.Code != 143 && exit.Code != 2 { // Go's runtime exits with 2
		t.Errorf("the main process: %+v, %v", exit, err)
	}
}

// A sandbox is served as it was made, whatever the provider makes now.
func TestBothKindsInOneEngine(t *testing.T) {
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
			t.Errorf("Status has caps %+v, %v; want those that it was made with", st.Caps, err)
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
