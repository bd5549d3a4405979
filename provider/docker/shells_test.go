//go:build linux

package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// busyboxWithShell is busybox with a shell of this machine as /bin/sh.
func busyboxWithShell(t *testing.T, shell string) v1.Image {
	t.Helper()
	program, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("this machine has no %s", shell)
	}
	needs, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Skipf("ldd %s: %v", program, err)
	}
	entries := []testimage.Entry{testimage.Symlink("bin/sh", "/opt/"+shell)}
	add := func(from, to string) {
		body, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, testimage.Entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(to, "/"), Mode: 0o755}, Body: body})
	}
	add(program, "/opt/"+shell)
	for word := range bytes.FieldsSeq(needs) {
		if name := string(word); strings.HasPrefix(name, "/") {
			add(name, name)
		}
	}
	img, err := mutate.AppendLayers(testimage.Busybox(t), testimage.Layer(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// The scripts for sandboxes without a guest work in the shells of Debian and Fedora. The suite
// tests them with busybox.
func TestPlainShells(t *testing.T) {
	p := open(t, withoutGuest)
	defer p.Close()
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			image := serveRegistry(t).Push(shell+":1", busyboxWithShell(t, shell))
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
			defer cancel()
			sb, err := p.Create(ctx, &atoll.Spec{Image: image})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Remove(context.Background(), atoll.RemoveVolumes())
			checkCommands(t, sb)
			checkMissingPrograms(t, sb)
			checkKillDescendants(t, sb)
			process, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done"}})
			if err != nil {
				t.Fatal(err)
			}
			awaitPrinted(t, process, "ready\n") // the trap is set
			if err := sb.Stop(ctx, time.Minute); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if exit, err := process.Wait(ctx); err == nil && exit.Code != 9 {
				t.Errorf("the process exited with %+v; want code 9", exit)
			}
		})
	}
}

func checkMissingPrograms(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	for name, kind := range map[string]atoll.Kind{
		"none": atoll.ErrCommandNotFound, "/none/none": atoll.ErrCommandNotFound, "/etc/passwd": atoll.ErrExecFailed, "/etc": atoll.ErrExecFailed,
	} {
		if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{name}}); atoll.KindOf(err) != kind {
			t.Errorf("Exec of %s: %v, want kind %q", name, err, kind)
		}
	}
}

// checkKillDescendants kills a process. Its descendants have changed their session, their
// environment or their parent, but none of them all three. One executes programs without a pause.
func checkKillDescendants(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	script := `again='exec sh -c "$1" sh "$1"'; (setsid sh -c "$again" sh "$again" &)
setsid sleep 1001 & env -i sleep 1002 & (setsid sleep 1003 &) ; sh -c 'env -i setsid sleep 1004 & wait' & wait`
	process, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	count := func() string {
		text, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"busybox", "sh", "-c", "busybox ps -o args | busybox grep -c -e '^sleep 100[1234]' -e '^sh -c exec' || true"}})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	eventually(t, "the descendants", func() error {
		if n := count(); n != "5" {
			return fmt.Errorf("%s of 5 descendants run", n)
		}
		return nil
	})
	if err := process.Signal(t.Context(), atoll.SIGKILL); err != nil {
		t.Errorf("Signal: %v", err)
	}
	if got := count(); got != "0" {
		t.Errorf("%s descendants still run", got)
	}
	if _, err := process.Wait(t.Context()); err != nil {
		t.Errorf("Wait: %v", err)
	}
}

// If a program has replaced the shell, the provider stops reading its output at some point.
func TestPlainShellReplaced(t *testing.T) {
	p := openForTest(t, withoutGuest)
	for _, shell := range []string{"/bin/busybox yes >&2", "echo 1; exec /bin/busybox yes"} {
		sb := createSandbox(t, p, atoll.Spec{})
		runShell(t, sb, "rm /bin/sh && printf '#!/bin/busybox sh\\n"+shell+"\\n' >/bin/sh && chmod +x /bin/sh")
		for _, tty := range []*atoll.Size{nil, {Rows: 24, Cols: 80}} {
			if tty == nil && strings.HasPrefix(shell, "echo") { // a command may print that, too
				continue
			}
			_, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}, TTY: tty})
			wantKind(t, shell, err, atoll.ErrExecFailed)
		}
	}
}
