//go:build unix

package dagger_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/compute"
	"github.com/seed46cd37a8/atoll/compute/dagger"
	"github.com/seed46cd37a8/atoll/internal/disk"
)

// guest is no program: nothing comes so far as to run it.
func guest() ([]byte, error) { return []byte("guest"), nil }

// jobOf is a job of a sandbox that is like that.
func jobOf(spec atoll.Spec) *compute.Job {
	return &compute.Job{Spec: spec, Args: []string{"sh", "-c", "true"}, Timeout: atoll.Duration(time.Minute), MaxOutput: 1000, MaxFiles: 1, MaxFileSize: 1000, MaxContent: 1000}
}

// What a container of Dagger's cannot be is refused before there is one, and not left out.
func TestRefuses(t *testing.T) {
	b := dagger.New(dagger.Options{CLI: filepath.Join(t.TempDir(), "none"), Guest: guest, Dir: t.TempDir()})
	open := dagger.New(dagger.Options{CLI: filepath.Join(t.TempDir(), "none"), Guest: guest, Dir: t.TempDir(), OpenNetwork: true})
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
		{b, func(s *atoll.Spec) { s.Image = "" }, atoll.ErrUnsupported, "name one"},
		{b, func(s *atoll.Spec) { s.Network.Mode = atoll.NetworkOn }, atoll.ErrUnsupported, "dagger.open_network"},
		{b, func(s *atoll.Spec) { s.Image = "host" }, atoll.ErrUnsupported, "image host is on this machine alone"},
		{b, func(s *atoll.Spec) { s.Image = "/srv/root" }, atoll.ErrUnsupported, "tools.images"},
		{b, func(s *atoll.Spec) { s.Image = "atoll-local/base:1" }, atoll.ErrUnsupported, "of a registry"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Allow = atoll.NetworkEgress, []string{"example.com"} }, atoll.ErrUnsupported, "none or all"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Allow = atoll.NetworkOn, []string{"10.0.0.1"} }, atoll.ErrUnsupported, "none or all"},
		{open, func(s *atoll.Spec) { s.Network.Mode, s.Network.Name = atoll.NetworkNamed, "n" }, atoll.ErrUnsupported, "none or all"},
		{open, func(s *atoll.Spec) { s.Network.Mode = atoll.NetworkOn }, atoll.ErrUnavailable, "no CLI"}, // it would
		{b, func(s *atoll.Spec) { s.Name, s.Project, s.Env = "n", "p", []string{"A=1"} }, atoll.ErrUnavailable, "no CLI"},
	} {
		spec := atoll.Spec{Image: "busybox"}
		tt.set(&spec)
		if _, err := tt.backend.Run(t.Context(), jobOf(spec)); atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%+v: %v, want %q that says %q", spec, err, tt.kind, tt.say)
		}
	}
}

// Without a CLI and a session, it says what to do, and fetches none.
func TestNoCLI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	b := dagger.New(dagger.Options{Guest: guest, Dir: t.TempDir()})
	want := "install Dagger's, or set dagger.cli"
	if p := b.Probe(t.Context()); p.OK || !strings.Contains(p.Reason, want) || !strings.Contains(p.Fix, "dagger.cli") {
		t.Errorf("the probe says %+v", p)
	}
	if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v", err)
	}
	if fetched, _ := os.ReadDir(os.Getenv("XDG_CACHE_HOME")); len(fetched) > 0 {
		t.Errorf("it has fetched %v", fetched)
	}
	t.Setenv("DAGGER_SESSION_PORT", "1") // where nobody listens
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

// What a CLI says when it has no engine is passed on, and one that says nothing is not
// waited for any longer than it is to be.
func TestCLIWithoutEngine(t *testing.T) {
	cli := filepath.Join(t.TempDir(), "cli")
	t.Setenv("DAGGER_SESSION_PORT", "1") // of which it is not to hear
	t.Setenv("DAGGER_SESSION_TOKEN", "t")
	for script, want := range map[string]string{
		"echo no engine at $_EXPERIMENTAL_DAGGER_RUNNER_HOST, $DO_NOT_TRACK $DAGGER_SESSION_PORT$DAGGER_SESSION_TOKEN. >&2; exit 1": "no engine at tcp://nowhere, 1 .",
		"read end":     "not connected after 200ms",
		"echo no JSON": "invalid character",
	} {
		if err := os.WriteFile(cli, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guest, Dir: t.TempDir(), Patience: 200 * time.Millisecond})
		if strings.Contains(script, "echo") {
			b = dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guest, Dir: t.TempDir()})
		}
		_, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"}))
		if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", script, err, want)
		}
	}
}

// A CLI that is not connected is killed with all that it has started, at once: when its
// time is over, and when nobody waits for it any more.
func TestKillsCLI(t *testing.T) {
	dir := t.TempDir()
	cli, child := filepath.Join(dir, "cli"), filepath.Join(dir, "child")
	hold := filepath.Join(dir, "hold") // what has left its session, and holds its output, ends with the test
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
	for _, tt := range []struct {
		patience, timeout time.Duration
		cancel            bool
		want              error
	}{
		{patience: time.Second, timeout: time.Minute, want: atoll.ErrUnavailable},
		{patience: time.Minute, timeout: time.Minute, cancel: true, want: context.Canceled},
		{patience: time.Minute, timeout: -5*time.Minute + time.Second/2, want: atoll.ErrTimeout}, // what is added to that is all but used up
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
		_, err := dagger.New(dagger.Options{CLI: cli, Engine: "tcp://nowhere", Guest: guest, Dir: dir, Patience: tt.patience}).Run(ctx, job)
		if !errors.Is(err, tt.want) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s it says %v, want %v", tt.patience, err, tt.want)
		}
		if took := time.Since(began); took > 15*time.Second {
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
		for end := time.Now().Add(5 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("what it has started, %d, is not killed", pid)
			}
		}
	}
}

// Who only asks has no engine started, which a CLI does that is told of none.
func TestProbeStartsNone(t *testing.T) {
	dir := t.TempDir()
	cli, asked := filepath.Join(dir, "cli"), filepath.Join(dir, "asked")
	if err := os.WriteFile(cli, fmt.Appendf(nil, "#!/bin/sh\n: >%s\nexit 1\n", asked), 0o755); err != nil {
		t.Fatal(err)
	}
	for engine, want := range map[string]bool{"": false, "docker-image://registry.dagger.io/engine:v0.16.0": false, "tcp://nowhere": true, "docker-container://none": true} {
		p := dagger.New(dagger.Options{CLI: cli, Engine: engine}).Probe(t.Context())
		_, err := os.Stat(asked)
		if got := err == nil; got != want || p.OK == want || (p.Fix != "") != want {
			t.Errorf("engine %q: it has asked: %v, %+v", engine, got, p)
		}
		_ = os.Remove(asked)
	}
}

// What those have left who were killed is removed, and nothing that somebody uses.
func TestTidies(t *testing.T) {
	dir := t.TempDir()
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
	lock, err := disk.TryLock(filepath.Join(dir, "jobs", "used.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	b := dagger.New(dagger.Options{CLI: filepath.Join(dir, "none"), Guest: guest, Dir: dir})
	run := func() {
		t.Helper()
		if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); atoll.KindOf(err) != atoll.ErrUnavailable {
			t.Error(err)
		}
	}
	all := func() (names []string) {
		t.Helper()
		for _, pattern := range []string{"*", "jobs/*"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range found {
				names = append(names, strings.TrimPrefix(name, dir+"/"))
			}
		}
		return names
	}
	run()
	sum := fmt.Sprintf("guest-%.12x", sha256.Sum256([]byte("guest")))
	want := []string{sum, "guest-new", "jobs", "new-new", "other", "jobs/used", "jobs/used.lock"}
	slices.Sort(want[:2])
	if got := all(); !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	// A guest that is used says so, and is made again if somebody has removed it.
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

// A guest that cannot be had is an error before anything is connected.
func TestNoGuest(t *testing.T) {
	b := dagger.New(dagger.Options{Guest: func() ([]byte, error) { return nil, errors.New("none was built") }})
	if _, err := b.Run(t.Context(), jobOf(atoll.Spec{Image: "busybox"})); err == nil || !strings.Contains(err.Error(), "none was built") {
		t.Errorf("it says %v", err)
	}
}
