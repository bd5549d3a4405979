package dagger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger"
	"github.com/seed46cd37a8/atoll/agent/jobs/jobstest"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testengine"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// registry is the address of the test images on the engine's machine.
const registry = "127.0.0.1:5000"

// An engine is a test engine with an image.
type engine struct {
	*testengine.Engine
	*dagger.Backend
	registry *testimage.Registry
	spec     atoll.Spec
	dir      string // of the backend
}

func startEngine(t *testing.T, set func(*dagger.Options)) *engine {
	t.Helper()
	e := testengine.Dagger(t, registry)
	images := e.Registry(t, registry)
	ref := images.Push("busybox:1", testimage.Busybox(t))
	opts := dagger.Options{CLI: testenv.Dagger(t, "dagger"), Engine: e.Host, Guest: testenv.Guest, Dir: t.TempDir(), Patience: testenv.Scale(time.Minute)}
	if set != nil {
		set(&opts)
	}
	return &engine{e, dagger.New(opts), images, atoll.Spec{Image: ref}, opts.Dir}
}

// A test engine passes the suite, and tests of Dagger's own features.
func TestEngine(t *testing.T) {
	e := startEngine(t, func(o *dagger.Options) { o.OpenNetwork = true })
	e.acceptConnections(t, "0.0.0.0:5001")
	on := e.spec
	on.Network.Mode = atoll.NetworkOn
	t.Run("Conformance", func(t *testing.T) {
		jobstest.Run(t, e, jobstest.Options{Spec: e.spec, NoImage: e.missingImage(), SpecOn: on, Reach: testengine.DaggerGateway + ":5001", Held: e.heldResources})
	})
	t.Run("User", e.testUser)
	t.Run("NoImage", e.testNoImage)
	t.Run("NoSockets", e.testNoSockets)
	t.Run("Forged", e.testForgedOutcome)
	t.Run("Probe", e.testProbe)
	t.Run("Tool", e.testTool)
	t.Run("Session", e.testSession)
}

// The error of a job that has begun never suggests a retry: if the CLI, the guest or
// the engine ends meanwhile.
func TestInterrupted(t *testing.T) {
	var pidFile string
	e := startEngine(t, func(o *dagger.Options) {
		dir := t.TempDir()
		pidFile = filepath.Join(dir, "pid")
		script := fmt.Sprintf("#!/bin/sh\necho $$ >%s\necho some trouble >&2\nexec %s \"$@\"\n", pidFile, o.CLI)
		o.CLI = filepath.Join(dir, "cli")
		if err := os.WriteFile(o.CLI, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	})
	for _, tt := range []struct {
		name, want string
		victim     func() int
	}{
		{"CLI", "some trouble", func() int { return pidIn(t, pidFile) }},
		{"Guest", "ended with code 137", func() int { return e.findProcess(t, "guest\x00job") }},
		{"Engine", "", func() int {
			if err := os.WriteFile(e.At("end"), nil, 0o600); err != nil { // otherwise it is restarted
				t.Fatal(err)
			}
			return childOf(t, e.Pid, "engine")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			job := jobOf(e.spec)
			job.Args = []string{"sleep", "611"}
			var r *jobs.Result
			var err error
			var work sync.WaitGroup
			work.Go(func() { r, err = e.Run(t.Context(), job) })
			e.waitFor(t, "sleep\x00611", true)
			if pid := tt.victim(); pid <= 1 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				t.Fatalf("%d cannot be killed", pid)
			}
			work.Wait()
			if atoll.KindOf(err) != atoll.ErrConflict || !strings.Contains(err.Error(), "may have done a part of its work") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("it says %+v, %v, want it to name %q", r, err, tt.want)
			}
			for end := time.Now().Add(testenv.Scale(30 * time.Second)); tt.name != "Engine" && len(e.heldResources(t)) > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the engine still has %v", e.heldResources(t))
				}
			}
		})
	}
}

// findProcess returns the pid of a process in the engine's containers whose command
// line contains like, 0 if there is none.
func (e *engine) findProcess(t *testing.T, like string) int {
	t.Helper()
	for _, held := range e.heldResources(t) {
		for _, pid := range strings.Fields(strings.TrimPrefix(held, "processes ")) {
			args, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline")) // it may have ended
			if n, err := strconv.Atoi(pid); err == nil && strings.Contains(string(args), like) {
				return n
			}
		}
	}
	return 0
}

func pidIn(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// childOf returns the pid of a child of pid with that name.
func childOf(t *testing.T, pid int, name string) int {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range strings.Fields(string(children)) {
		if called, _ := os.ReadFile(filepath.Join("/proc", child, "comm")); string(called) == name+"\n" {
			n, _ := strconv.Atoi(child)
			return n
		}
	}
	return 0
}

// acceptConnections listens on the engine's machine.
func (e *engine) acceptConnections(t *testing.T, address string) {
	t.Helper()
	var l net.Listener
	err := e.Inside(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello\n")
			conn.Close()
		}
	}()
}

// heldResources lists the processes of the engine's containers, and the backend's jobs.
func (e *engine) heldResources(t *testing.T) (held []string) {
	t.Helper()
	jobs, err := filepath.Glob(filepath.Join(e.dir, "jobs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range jobs {
		held = append(held, "job "+name)
	}
	roots, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(e.Dir)) // version 1 has one for each controller
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range append(roots, "/sys/fs/cgroup/"+filepath.Base(e.Dir)) {
		_ = filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return nil // just removed, or of the other cgroup version
			}
			if procs, _ := os.ReadFile(filepath.Join(name, "cgroup.procs")); len(procs) > 0 {
				held = append(held, "processes "+strings.TrimSpace(string(procs)))
			}
			return nil
		})
	}
	return held
}

func (e *engine) wantOutput(t *testing.T, spec atoll.Spec, script, want string) {
	t.Helper()
	job := jobOf(spec)
	job.Args = []string{"sh", "-c", script}
	r, err := e.Run(t.Context(), job)
	if err != nil || string(r.Stdout.Data) != want {
		t.Errorf("%s: %v, %+v, want %q", script, err, r, want)
	}
}

// The program runs as the image's user, or the one in the spec, and owns the work
// directory; the guest runs as root.
func (e *engine) testUser(t *testing.T) {
	spec := e.spec
	spec.User = "user"
	const script = `id -u; echo x >f && cat f; echo $HOME; cat /.atoll/job/job.json 2>/dev/null`
	e.wantOutput(t, spec, script, "1000\nx\n/home/user\n")
	config := v1.Config{User: "1000", Env: []string{"PATH=/bin", "FROM=image", "HOME=/app", "OTEL_SERVICE_NAME=its own"}}
	spec = atoll.Spec{Image: e.registry.Push("ofuser:1", testimage.New(t, config, imageLayers(t, testimage.Busybox(t))...)), Workdir: "/elsewhere/work", Env: []string{"MORE=spec"}}
	e.wantOutput(t, spec, `id -u; pwd; : >f; echo $FROM $MORE $HOME $OTEL_SERVICE_NAME; env | grep -c OTEL_`, "1000\n/elsewhere/work\nimage spec /app its own\n1\n")
	spec.Env = append(spec.Env, "HOME=/mine", "FROM=spec")
	e.wantOutput(t, spec, `echo $FROM $HOME`, "spec /mine\n")
}

func imageLayers(t *testing.T, img v1.Image) []v1.Layer {
	t.Helper()
	all, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// missingImage returns the name of a missing image in the same registry.
func (e *engine) missingImage() string {
	return strings.Replace(e.spec.Image, "busybox:1", "busybox:none", 1)
}

func (e *engine) testNoImage(t *testing.T) {
	for ref, want := range map[string]atoll.Kind{
		e.missingImage(): atoll.ErrNotExist,
		strings.Replace(e.spec.Image, "busybox:1", "none:1", 1): atoll.ErrNotExist,
		"127.0.0.1:5009/busybox:1":                              atoll.ErrUnavailable, // nobody listens there
	} {
		if _, err := e.Run(t.Context(), jobOf(atoll.Spec{Image: ref})); atoll.KindOf(err) != want || !strings.Contains(err.Error(), ref) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
	for status, want := range map[int]atoll.Kind{http.StatusUnauthorized: atoll.ErrDenied, http.StatusForbidden: atoll.ErrDenied, http.StatusInternalServerError: atoll.ErrUnavailable} {
		e.registry.Fault(func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		})
		ref := strings.Replace(e.spec.Image, "busybox:1", fmt.Sprintf("refused:%d", status), 1)
		if _, err := e.Run(t.Context(), jobOf(atoll.Spec{Image: ref})); atoll.KindOf(err) != want || !strings.Contains(err.Error(), ref) {
			t.Errorf("%d: %v, want %q", status, err, want)
		}
	}
	e.registry.Fault(nil)
}

// A program without a network cannot create network sockets, by any system call.
func (e *engine) testNoSockets(t *testing.T) {
	e.wantOutput(t, e.spec, `nc -w 1 127.0.0.1 1 2>&1 | grep -c 'not supported'; ping -c 1 127.0.0.1 2>&1 | grep -cE 'not (supported|permitted)'`, "1\n1\n")
}

// A program cannot forge its outcome, nor can its background processes.
func (e *engine) testForgedOutcome(t *testing.T) {
	e.wantOutput(t, e.spec, `cd /.atoll/job && echo '{"kind":"not_found"}' >outcome.json; mkdir -p /tmp/x; echo real`, "real\n")
	e.wantOutput(t, e.spec, `cd /.atoll/job && mkdir -p outcome.json/full && ln -s /etc/passwd link; echo real`, "real\n")
	e.wantOutput(t, e.spec, `cd /.atoll/job && for i in 1 2 3; do setsid sh -c 'trap "" TERM HUP; while :; do echo "{\"kind\":\"not_found\"}" >outcome.json; done' >/dev/null 2>&1 & done; echo real`, "real\n")
}

func (e *engine) testProbe(t *testing.T) {
	if p := e.Probe(t.Context()); !p.OK || !strings.Contains(strings.Join(p.Notes, "\n"), "engine v0.16.0") {
		t.Errorf("it says %+v", p)
	}
}

// The tool of agents in compute mode needs no working provider.
func (e *engine) testTool(t *testing.T) {
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	kit, err := tools.New(p, tools.Options{
		Compute: e.Backend, Images: frontmatter.Images{Shortcuts: map[string]string{"linux": e.spec.Image, "python": e.spec.Image}},
		Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCompute},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer kit.Close()
	for _, tt := range []struct{ input, want string }{
		{`{"runtime": "bash", "code": "echo $1 $COLOUR; cat in; echo made >out; exit 3", "args": ["a"], "env": {"COLOUR": "red"}, "files": {"in": "x"}}`,
			`"ok":false,"runtime":"bash","exit_code":3,`},
		{`{"runtime": "bash", "code": "echo $1 $COLOUR; cat in; echo made >out", "args": ["a"], "env": {"COLOUR": "red"}, "files": {"in": "x"}}`,
			`"stdout":"a red\nx","stderr":"","artifacts":[{"path":"out","size_bytes":5,"content":"made\n","encoding":"text"}]`},
		{`{"runtime": "python", "code": "print(1)"}`, `the image has no python3`},
		{`{"runtime": "bash", "code": "sleep 50", "timeout_seconds": 1}`, `"exit_code":124`},
	} {
		out, err := kit.Call(t.Context(), tools.Caller{}, "sandbox_run", []byte(tt.input), nil)
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s gives %s, %v, want %s", tt.input, out, err, tt.want)
		}
	}
}

// A program started in a session runs its jobs there, and leaves the session unchanged.
func (e *engine) testSession(t *testing.T) {
	cli := exec.Command(testenv.Dagger(t, "dagger"), "session")
	cli.Env = append(os.Environ(), "_EXPERIMENTAL_DAGGER_RUNNER_HOST="+e.Host, "DO_NOT_TRACK=1")
	stdin, err := cli.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cli.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cli.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		if err := cli.Wait(); err != nil {
			t.Errorf("the session ended with %v", err)
		}
	}()
	var params struct {
		Port  int    `json:"port"`
		Token string `json:"session_token"`
	}
	if err := json.NewDecoder(stdout).Decode(&params); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DAGGER_SESSION_PORT", strconv.Itoa(params.Port))
	t.Setenv("DAGGER_SESSION_TOKEN", params.Token)
	inside := *e
	inside.Backend = dagger.New(dagger.Options{Guest: testenv.Guest, Dir: t.TempDir()})
	if p := inside.Probe(t.Context()); !p.OK || !strings.Contains(strings.Join(p.Notes, "\n"), "by the session that this program is in") {
		t.Errorf("it says %+v", p)
	}
	for range 2 {
		inside.wantOutput(t, e.spec, "echo inside", "inside\n")
	}
	ports, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	if far := fmt.Sprintf(" 0100007F:%04X 01 ", params.Port); strings.Contains(string(ports), far) {
		t.Errorf("connections to it are left:\n%s", ports)
	}
	ctx, cancel := context.WithCancel(t.Context())
	job := jobOf(e.spec)
	job.Args = []string{"sleep", "612"}
	var work sync.WaitGroup
	work.Go(func() {
		if r, err := inside.Run(ctx, job); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled Run returned %+v, %v", r, err)
		}
	})
	e.waitFor(t, "sleep\x00612", true)
	cancel()
	work.Wait()
	e.waitFor(t, "sleep\x00612", false)
}

// waitFor waits until a process with that command line exists, or none does.
func (e *engine) waitFor(t *testing.T, like string, there bool) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(30 * time.Second)); (e.findProcess(t, like) != 0) != there; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %q: want it there: %v", like, there)
		}
	}
}
