//go:build linux

package local_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// crashDir is an environment variable. If it is set, the test binary creates a sandbox in that
// directory, as described on its standard input, and waits until it is killed.
const crashDir = "ATOLL_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		makeAndHang(dir)
	}
	os.Exit(m.Run())
}

// makerCommand returns the command that runs the test binary that way.
func makerCommand(dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	return cmd
}

func makeAndHang(dir string) {
	p, err := local.New(local.Options{Dir: dir})
	if err == nil {
		err = providertest.CreateAndWait(p, os.Stdin, os.Stdout)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func newLocal(t testing.TB, dir string) *local.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	var opts []providertest.Option
	if testing.Short() {
		opts = append(opts, providertest.Only("create", "exec", "output", "tty", "restart", "watch", "remove", "dial"),
			providertest.SkipRest("-short: these are those that do much at once"))
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newLocal(t, t.TempDir()) }, append(opts,
		providertest.OtherProcess(func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
			dir := t.TempDir()
			return makerCommand(dir), func() atoll.Provider { return newLocal(t, dir) }
		}),
		providertest.FailSteps(func(t *testing.T, step func(string) error) atoll.Provider {
			p, err := local.New(local.Options{Dir: t.TempDir()}.WithStep(step))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}))...)
}

func BenchmarkProvider(b *testing.B) {
	providertest.Bench(b, func(b *testing.B) atoll.Provider { return newLocal(b, b.TempDir()) })
}

func createSandbox(t *testing.T, p atoll.Provider, spec *atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func statusOf(t *testing.T, p atoll.Provider, id string) atoll.Status {
	t.Helper()
	sb, err := p.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// awaitDead waits until the process has ended or is a zombie.
func awaitDead(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(testenv.Scale(10 * time.Second))
	for {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// escapee is a script whose grandchild leaves its parent, its group and its session, and prints its
// pid.
const escapee = `setsid sh -c 'echo $$; exec sleep 1000' & sleep 1000`

func TestKillFindsWhoLeftTheSession(t *testing.T) {
	p := newLocal(t, t.TempDir())
	defer p.Close()
	sb := createSandbox(t, p, &atoll.Spec{})
	for name, script := range map[string]string{
		"child":              escapee,
		"orphan":             `(` + escapee + `) & wait`,
		"execs all the time": `(setsid sh -c 'echo $$; AGAIN="exec sh -c \"\$AGAIN\""; export AGAIN; exec sh -c "$AGAIN"' &) & sleep 1000`,
		"no parent":          `sh -c 'setsid sh -c "echo \$\$; exec sleep 1000" &'; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			proc, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"sh", "-c", script}, Stdout: w})
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(r, &pid); err != nil {
				t.Fatal(err)
			}
			if err := proc.Signal(t.Context(), atoll.SIGKILL); err != nil {
				t.Errorf("Signal: %v", err)
			}
			if exit, err := proc.Wait(t.Context()); err != nil || exit.Signal != atoll.SIGKILL {
				t.Errorf("Wait: %v, %v", exit, err)
			}
			w.Close()
			awaitDead(t, pid)
		})
	}
}

func TestAfterACrash(t *testing.T) {
	dir := t.TempDir()
	cmd := makerCommand(dir)
	spec, err := json.Marshal(atoll.Spec{Name: "web", Cmd: []string{"sh", "-c", escapee}})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(spec), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id string
	var pid int
	if _, err := fmt.Fscan(out, &id, &pid); err != nil {
		t.Fatal(err)
	}

	beside := newLocal(t, dir) // while the maker runs, it owns the sandbox
	if _, err := beside.Get(t.Context(), id); !errors.Is(err, atoll.ErrNotFound) {
		t.Errorf("Get: %v, want ErrNotFound", err)
	}
	if _, err := beside.Create(t.Context(), &atoll.Spec{ID: id}); !errors.Is(err, atoll.ErrAlreadyExists) {
		t.Errorf("Create with its id: %v, want ErrAlreadyExists", err)
	}
	if err := beside.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the other program's process has ended: %v", err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	p := newLocal(t, dir)
	defer p.Close()
	awaitDead(t, pid)
	if st := statusOf(t, p, id); st.State != atoll.StateFailed || st.Reason == "" || st.Spec.Name != "web" || st.Stopped.IsZero() {
		t.Errorf("after the crash: %+v", st)
	}
	sb, err := p.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Errorf("Start: %v", err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func TestAfterARestart(t *testing.T) {
	dir := t.TempDir()
	p := newLocal(t, dir)
	running := createSandbox(t, p, &atoll.Spec{Name: "web", Labels: map[string]string{"k": "v"}})
	created := createSandbox(t, p, &atoll.Spec{NoStart: true})
	expired := createSandbox(t, p, &atoll.Spec{TTL: atoll.Duration(time.Hour)})
	if err := atoll.WriteFile(t.Context(), running, "file", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	setExpired(t, dir, expired.ID())
	half := writeUnfinished(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "sandboxes", atoll.NewID()+".json"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	p, err := local.New(local.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if !strings.Contains(log.String(), "no isolation") || !strings.Contains(log.String(), "level=ERROR msg=adopt") {
		t.Errorf("the log says %s", &log)
	}
	if st := statusOf(t, p, running.ID()); st.State != atoll.StateStopped || st.Reason == "" || st.Spec.Labels["k"] != "v" {
		t.Errorf("the sandbox that ran: %+v", st)
	}
	if st := statusOf(t, p, created.ID()); st.State != atoll.StateCreated {
		t.Errorf("the sandbox that never ran: %+v", st)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{Name: "web"}); !errors.Is(err, atoll.ErrAlreadyExists) {
		t.Errorf("Create of its name: %v, want ErrAlreadyExists", err)
	}
	for _, id := range []string{half, expired.ID()} {
		deadline := time.Now().Add(testenv.Scale(10 * time.Second))
		for {
			if _, err := p.Get(t.Context(), id); errors.Is(err, atoll.ErrNotFound) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is still there", id)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if _, err := os.Stat(filepath.Join(dir, "volumes", "default", "data-"+id)); err == nil {
			t.Errorf("the data volume of %s is left", id)
		}
	}
	sb, err := atoll.Resolve(t.Context(), p, "", "web")
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"cat", "file"}}); string(out) != "kept" {
		t.Errorf("the file holds %q, %v", out, err)
	}
}

// setExpired sets a sandbox's expiry to a time in the past.
func setExpired(t *testing.T, dir, id string) {
	t.Helper()
	name := filepath.Join(dir, "sandboxes", id+".json")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var st atoll.Status
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	st.Expires = time.Now().Add(-time.Minute)
	if b, err = json.Marshal(st); err == nil {
		err = os.WriteFile(name, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// writeUnfinished writes the files of a program that was killed during Create.
func writeUnfinished(t *testing.T, dir string) (id string) {
	t.Helper()
	spec := (&atoll.Spec{}).WithDefaults()
	b, err := json.Marshal(struct {
		atoll.Status
		Fresh bool `json:"fresh"`
	}{atoll.Status{ID: spec.ID, Spec: *spec, State: atoll.StateCreating}, true})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "sandboxes", spec.ID+".json"), b, 0o600)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "volumes/default/data-"+spec.ID), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return spec.ID
}

func TestMounts(t *testing.T) {
	dir := t.TempDir()
	p := newLocal(t, dir)
	defer p.Close()
	mount := func(target string) atoll.Mount {
		return atoll.Mount{Type: atoll.MountVolume, Source: "cache", Target: target}
	}
	readOnly := mount("/work/m")
	readOnly.ReadOnly = true
	for _, m := range []atoll.Mount{mount("/data"), mount("/work"), readOnly} {
		if _, err := p.Create(t.Context(), &atoll.Spec{Mounts: []atoll.Mount{m}}); !errors.Is(err, atoll.ErrUnsupported) {
			t.Errorf("Create with %+v: %v, want ErrUnsupported", m, err)
		}
	}
	sb := createSandbox(t, p, &atoll.Spec{Mounts: []atoll.Mount{mount("/work/deep/m")}})
	if err := atoll.WriteFile(t.Context(), sb, "deep/m/f", []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "volumes/default/cache/f")); string(b) != "x" {
		t.Errorf("on the volume: %q, %v", b, err)
	}
	files := atoll.Files(sb)
	if err := files.Rename(t.Context(), "deep/m/f", "f"); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Rename across volumes: %v, want ErrInvalid", err)
	}
	if err := files.Remove(t.Context(), "deep/m", true); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Remove of the mount: %v, want ErrInvalid", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "volumes/default/data-"+sb.ID(), "deep/m")); !os.IsNotExist(err) {
		t.Errorf("the link to the volume is left on the data volume: %v", err)
	}
	again := createSandbox(t, p, &atoll.Spec{ID: sb.ID()})
	if err := atoll.WriteFile(t.Context(), again, "deep/m", nil, 0); err != nil {
		t.Error(err)
	}
	if err := again.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), &atoll.Spec{ID: sb.ID(), Mounts: []atoll.Mount{mount("/work/deep/m")}}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Create with a mount over a file: %v, want ErrInvalid", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "volumes/default/data-"+sb.ID(), "deep/m")); err != nil {
		t.Errorf("a failed Create removed an existing data volume: %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	p := newLocal(t, t.TempDir())
	defer p.Close()
	sb := createSandbox(t, p, &atoll.Spec{Env: []string{"PATH=/bin:relative"}})
	script := func(name, text string, mode uint32) {
		if err := atoll.WriteFile(t.Context(), sb, name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	script("relative/found", "#!/bin/sh\n", 0o755)
	script("plain", "no program", 0o644)
	script("garbage", "\x7fELFgarbage", 0o755)
	script("orphaned", "#!/no/such/interpreter\n", 0o755)
	for _, tt := range []struct {
		cmd  atoll.Command
		kind atoll.Kind
		text string
	}{
		{atoll.Command{Args: []string{"nope"}}, atoll.ErrCommandNotFound, "no such command"},
		{atoll.Command{Args: []string{"found"}}, atoll.ErrCommandNotFound, "no such command"},
		{atoll.Command{Args: []string{"./plain/x"}}, atoll.ErrCommandNotFound, "no such command"},
		{atoll.Command{Args: []string{"./plain"}}, atoll.ErrExecFailed, "permission denied"},
		{atoll.Command{Args: []string{"./garbage"}}, atoll.ErrExecFailed, "exec format error"},
		{atoll.Command{Args: []string{"./orphaned"}}, atoll.ErrCommandNotFound, `interpreter "/no/such/interpreter" does not exist`},
		{atoll.Command{Args: []string{"/"}}, atoll.ErrExecFailed, "is a directory"},
		{atoll.Command{Args: []string{"true"}, Dir: "missing"}, atoll.ErrExecFailed, `"missing": not a directory`},
		{atoll.Command{Args: []string{"true"}, Dir: "plain"}, atoll.ErrExecFailed, "not a directory"},
		{atoll.Command{Args: []string{"true"}, User: "12345"}, atoll.ErrUnsupported, "users"},
	} {
		_, err := sb.Exec(t.Context(), &tt.cmd)
		if atoll.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.text) {
			t.Errorf("%q: %v (%v), want %v that says %q", tt.cmd.Args, err, atoll.KindOf(err), tt.kind, tt.text)
		}
	}
	if err := atoll.Run(t.Context(), sb, &atoll.Command{Args: []string{"./found"}, Dir: "relative"}); err != nil {
		t.Errorf("a program named from its directory: %v", err)
	}
}

func TestNewRefusesNoDirectory(t *testing.T) {
	if _, err := local.New(local.Options{}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("New: %v, want ErrInvalid", err)
	}
}

func TestInterpreters(t *testing.T) { providertest.CheckInterpreters(t, newLocal(t, t.TempDir())) }
