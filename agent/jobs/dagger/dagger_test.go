//go:build unix

package dagger_test

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/dagger"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// guestHeader returns the header of a program for this machine; no test runs it.
func guestHeader() ([]byte, error) { return elfHeader(runtime.GOARCH), nil }

// elfHeader returns the header of a program.
func elfHeader(arch string) []byte {
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	header[16], header[18], header[20], header[52] = byte(elf.ET_EXEC), byte(machine), 1, 64
	return header
}

// jobOf returns a job with that spec.
func jobOf(spec atoll.Spec) *jobs.Job {
	return &jobs.Job{Spec: spec, Args: []string{"sh", "-c", "true"}, Timeout: atoll.Duration(time.Minute), MaxOutput: 1000, MaxFiles: 1, MaxFileSize: 1000, MaxContent: 1000}
}

// Specs that a container of Dagger cannot fulfil are refused early, not ignored in
// part.
func TestRefuses(t *testing.T) {
	b := dagger.New(dagger.Options{CLI: filepath.Join(t.TempDir(), "none"), Guest: guestHeader, Dir: t.TempDir()})
	open := dagger.New(dagger.Options{CLI: filepath.Join(t.TempDir(), "none"), Guest: guestHeader, Dir: t.TempDir(), OpenNetwork: true})
	for _, tt := range []struct {
		backend *dagger.Backend
		set     func(*atoll.Spec)
		kind    atoll.Kind
		say     string
	}{
		{b, func(s *atoll.Spec) { s.Resources.Memory = 1 << 30 }, atoll.ErrUnsupported, "resources"},
		{b, func(s *atoll.Spec) { s.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/v"}} }, atoll.ErrUnsupported, "mounts"},
		{b, func(s *atoll.Spec) { s.ReadOnlyRoot, s.Cache = true, true }, atoll.ErrUnsupported, "cache, read_only_root"},
		{b, func(s *atoll.Spec) { s.Workdir = "relative" }, atoll.ErrInvalid, "relative"},
		{b, func(s *atoll.Spec) { s.Image = "" }, atoll.ErrUnsupported, "no default image"},
		{b, func(s *atoll.Spec) { s.Network.Mode = atoll.NetworkOn }, atoll.ErrUnsupported, "dagger.open_network"},
		{b, func(s *atoll.Spec) { s.Image = "host" }, atoll.ErrUnsupported, "image host only exists on this machine"},
		{b, func(s *atoll.Spec) { s.Image = "/srv/root" }, atoll.ErrUnsupported, "tools.images"},
		{b, func(s *atoll.Spec) { s.Image = "atoll-local/base:1" }, atoll.ErrUnsupported, "of a registry"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Allow = atoll.NetworkEgress, []string{"example.com"} }, atoll.ErrUnsupported, "network none or on"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Allow = atoll.NetworkOn, []string{"10.0.0.1"} }, atoll.ErrUnsupported, "network none or on"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Name = atoll.NetworkNamed, "n" }, atoll.ErrUnsupported, "network none or on"},
		{open, func(s *atoll.Spec) { s.Network.Mode = atoll.NetworkOn }, atoll.ErrUnavailable, "no CLI"}, // the spec is accepted
		{b, func(s *atoll.Spec) { s.Name, s.Project, s.Env = "n", "p", []string{"A=1"} }, atoll.ErrUnavailable, "no CLI"},
	} {
		spec := atoll.Spec{Image: "busybox"}
		tt.set(&spec)
		if _, err := tt.backend.Run(t.Context(), jobOf(spec)); atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%+v: %v, want %q that says %q", spec, err, tt.kind, tt.say)
		}
	}
}

// Without a CLI and a session, the error contains advice, and nothing is downloaded.
func TestNoCLI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	b := dagger.New(dagger.Options{Guest: guestHeader, Dir: t.TempDir()})
	want := "install Dagger's CLI, or set dagger.cli"
	if p := b.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, want) || !strings.Contains(p.Fix, "dagger.cli") {
		t.Errorf("the probe says %+v", p)
	}
	if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v", err)
	}
	if fetched, _ := os.ReadDir(os.Getenv("XDG_CACHE_HOME")); len(fetched) > 0 {
		t.Errorf("it has fetched %v", fetched)
	}
	t.Setenv("DAGGER_SESSION_PORT", "1") // nobody listens there
	if p := b.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, "DAGGER_SESSION_TOKEN") {
		t.Errorf("of a session without a token, the probe says %+v", p)
	}
	if p := dagger.New(dagger.Options{Engine: "tcp://nowhere"}).Probe(t.Context()); p.OK || !strings.Contains(p.Reason, "no CLI") {
		t.Errorf("with an engine and a session, the probe says %+v", p)
	}
	t.Setenv("DAGGER_SESSION_TOKEN", "t")
	if p := b.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, "does not answer") || !strings.Contains(p.Fix, "dagger run") {
		t.Errorf("of a session that has ended, the probe says %+v", p)
	}
}

// Errors that the CLI prints are passed on, and a silent CLI has a time limit.
func TestCLIWithoutEngine(t *testing.T) {
	cli := filepath.Join(t.TempDir(), "cli")
	t.Setenv("DAGGER_SESSION_PORT", "1") // must not reach the CLI
	t.Setenv("DAGGER_SESSION_TOKEN", "t")
	for script, want := range map[string]string{
		"echo no engine at $_EXPERIMENTAL_DAGGER_RUNNER_HOST, $DO_NOT_TRACK $DAGGER_SESSION_PORT$DAGGER_SESSION_TOKEN. >&2; exit 1": "no engine at tcp://nowhere, 1 .",
		"read end":     "not connected after 200ms",
		"echo no JSON": "invalid character",
	} {
		if err := os.WriteFile(cli, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guestHeader, Dir: t.TempDir(), Patience: 200 * time.Millisecond})
		if strings.Contains(script, "echo") {
			b = dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guestHeader, Dir: t.TempDir()})
		}
		_, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"}))
		if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", script, err, want)
		}
	}
}

// An unconnected CLI is killed at once with all its children: after the time limit, and
// when the caller gives up.
func TestKillsCLI(t *testing.T) {
	dir := t.TempDir()
	cli, child := filepath.Join(dir, "cli"), filepath.Join(dir, "child")
	hold := filepath.Join(dir, "hold") // a process in another session, which holds the output; it ends with the test
	if err := syscall.Mkfifo(hold, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(hold, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	script := fmt.Sprintf("#!/bin/sh\nsetsid cat %s &\nsleep 1000 &\necho $! >%s\nwait\n", hold, child)
	if err := os.WriteFile(cli, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	begun := func() bool {
		text, err := os.ReadFile(child)
		return err == nil && strings.HasSuffix(string(text), "\n")
	}
	brief := max(5*time.Second, testenv.Scale(3*time.Second)) // enough time to start it
	for _, tt := range []struct {
		patience, timeout time.Duration
		cancel            bool
		want              error
	}{
		{patience: brief, timeout: time.Minute, want: atoll.ErrUnavailable},
		{patience: time.Minute, timeout: time.Minute, cancel: true, want: context.Canceled},
		{patience: time.Minute, timeout: -5*time.Minute + brief/2, want: atoll.ErrTimeout}, // dagger adds five minutes to it
	} {
		_ = os.Remove(child)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		go func() {
			for tt.cancel && !begun() {
				time.Sleep(10 * time.Millisecond)
			}
			if tt.cancel {
				cancel()
			}
		}()
		job := jobOf(atoll.Spec{Image: "busybox"})
		job.Timeout = atoll.Duration(tt.timeout)
		_, err := dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guestHeader, Dir: dir, Patience: tt.patience}).Run(ctx, job)
		if !errors.Is(err, tt.want) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s it says %v, want %v", tt.patience, err, tt.want)
		}
		if took := time.Since(began); took > testenv.Scale(45*time.Second) {
			t.Errorf("that took %s", took)
		}
		text, err := os.ReadFile(child)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(testenv.Scale(30 * time.Second)); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("what it has started, %d, is not killed", pid)
			}
		}
	}
}

// A Probe doesn't make the CLI start an engine, and doesn't claim that one works.
func TestProbeStartsNone(t *testing.T) {
	dir, with, without := t.TempDir(), t.TempDir(), t.TempDir()
	cli, asked := filepath.Join(dir, "cli"), filepath.Join(dir, "asked")
	script := fmt.Appendf(nil, "#!/bin/sh\nPATH=%s\n: >%s\nexit 1\n", os.Getenv("PATH"), asked)
	for _, name := range []string{cli, filepath.Join(with, "docker")} {
		if err := os.WriteFile(name, script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const starts, none = "not checked", "PATH has no program to start one with"
	for _, tt := range []struct {
		engine, path string
		asked, ok    bool
		why          string
	}{
		{"", with, false, true, starts},
		{"docker-image://registry.example.com/engine:v0.16.0", with, false, true, starts},
		{"", without, false, false, none},
		{"docker-image://registry.example.com/engine:v0.16.0", without, false, false, none},
		{"tcp://nowhere", with, true, false, "opened no session"},
		{"docker-container://none", with, true, false, "opened no session"},
	} {
		t.Setenv("PATH", tt.path)
		p := dagger.New(dagger.Options{CLI: cli, Engine: tt.engine}).Probe(t.Context())
		_, err := os.Stat(asked)
		if got := err == nil; got != tt.asked || p.OK != tt.ok || !strings.Contains(p.Reason, tt.why) || p.Fix == "" {
			t.Errorf("engine %q: it has asked: %v, %+v, want %+v", tt.engine, got, p, tt)
		}
		_ = os.Remove(asked)
	}
}

// An engine that doesn't answer, or on another platform than the guest's, is an error
// before the job starts, also in an outer session.
func TestEngineOfNoUse(t *testing.T) {
	var platform atomic.Value // "" means no answer
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if platform.Load() == "" {
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprintf(w, `{"data": {"defaultPlatform": %q, "version": "v1.2"}}`, platform.Load())
	}))
	defer server.Close()
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	t.Setenv("DAGGER_SESSION_PORT", port)
	t.Setenv("DAGGER_SESSION_TOKEN", "t")
	for _, tt := range []struct {
		platform string
		patience time.Duration
		want     string
	}{
		{"", 200 * time.Millisecond, "the engine does not answer: timed out after 200ms"},
		{"linux/s390x", time.Minute, "the engine runs on linux/s390x, and the guest"},
		{"linux/" + runtime.GOARCH + "x", time.Minute, "the engine runs on linux/" + runtime.GOARCH + "x"},
		{"windows/" + runtime.GOARCH, time.Minute, "the engine runs on windows"},
	} {
		b := dagger.New(dagger.Options{Guest: guestHeader, Dir: t.TempDir(), Patience: tt.patience})
		platform.Store(tt.platform)
		if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a job on %q: %v, want it to say %q", tt.platform, err, tt.want)
		}
		if p := b.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, tt.want) {
			t.Errorf("a probe of %q: %+v, want it to say %q", tt.platform, p, tt.want)
		}
	}
	platform.Store("linux/" + runtime.GOARCH + "/v8")
	if p := dagger.New(dagger.Options{}).Probe(t.Context()); !p.OK || p.Reason != "" || !strings.Contains(strings.Join(p.Notes, "\n"), "engine v1.2") {
		t.Errorf("a probe of a machine like this one: %+v", p)
	}
}

// Leftovers of killed programs are removed, and files in use stay.
func TestTidies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*") // not a pattern
	old := time.Now().Add(-30 * 24 * time.Hour)
	for name, modified := range map[string]time.Time{
		"jobs/left/job.json": old, "jobs/left.lock": old, "jobs/used/job.json": old, "jobs/used.lock": old,
		"guest-old": old, "guest-new": time.Now(), "new-old": old, "new-new": time.Now(), "other": old,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600), os.Chtimes(path, modified, modified)); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := fsutil.TryLock(filepath.Join(dir, "jobs", "used.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	b := dagger.New(dagger.Options{CLI: filepath.Join(dir, "none"), Guest: guestHeader, Dir: dir})
	run := func() {
		t.Helper()
		if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Error(err)
		}
	}
	all := func() (names []string) {
		t.Helper()
		for _, pattern := range []string{"*", "jobs/*"} {
			found, err := fs.Glob(os.DirFS(dir), pattern)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, found...)
		}
		return names
	}
	if got, want := all(), []string{"guest-new", "jobs", "new-new", "other", "jobs/used", "jobs/used.lock"}; !slices.Equal(got, want) {
		t.Errorf("before there is a job there is %q, want %q", got, want)
	}
	run()
	program, _ := guestHeader()
	sum := fmt.Sprintf("guest-%.12x", sha256.Sum256(program))
	want := []string{sum, "guest-new", "jobs", "new-new", "other", "jobs/used", "jobs/used.lock"}
	slices.Sort(want[:2])
	if got := all(); !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	// A used guest is marked, and written again if somebody has removed it.
	own := filepath.Join(dir, sum)
	if err := os.Chtimes(own, old, old); err != nil {
		t.Fatal(err)
	}
	run()
	if info, err := os.Stat(own); err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("the guest that is used: %v, %v", info, err)
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	run()
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

// A missing guest, or one for other machines, is an error before a session starts.
func TestNoGuest(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for want, guest := range map[string]func() ([]byte, error){
		"none was built":      func() ([]byte, error) { return nil, errors.New("none was built") },
		"build it with":       func() ([]byte, error) { return elfHeader(other), nil },
		"not a Linux program": func() ([]byte, error) { return []byte("#!/bin/sh\n"), nil },
	} {
		dir := t.TempDir()
		b := dagger.New(dagger.Options{Guest: guest, Dir: dir})
		if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: it has written %v, %v", want, left, err)
		}
	}
}
