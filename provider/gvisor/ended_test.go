//go:build linux

package gvisor_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/server/api"
)

func sayingSpec(text string) atoll.Spec {
	return atoll.Spec{Cmd: []string{"sh", "-c", "echo " + text + "; exec sleep 600"}}
}

// endedPath returns the file in which a supervisor saves the main process of its sandbox.
func (l *lab) endedPath(sb atoll.Sandbox) string {
	return filepath.Join(l.opts.Dir, "sandboxes", sb.ID(), "main.ended")
}

// awaitOutput waits until the main process has printed something.
func (l *lab) awaitOutput(sb atoll.Sandbox) {
	l.T.Helper()
	l.Poll(func() error {
		all, err := atoll.Processes(l.Context(), sb)
		if err == nil && all[0].Stdout.Written == 0 {
			err = errors.New("the main process has printed nothing")
		}
		return err
	})
}

// checkMainLost checks that calls about the main process only report that its sandbox does
// not run.
func (l *lab) checkMainLost(sb atoll.Sandbox) {
	l.T.Helper()
	_, err := sb.Process(l.Context(), atoll.MainProcess)
	supervisedtest.WantKind(l.T, "process", err, atoll.ErrStopped)
	_, err = atoll.Processes(l.Context(), sb)
	supervisedtest.WantKind(l.T, "processes", err, atoll.ErrStopped)
}

// A supervisor that is killed takes its main process's output along, and the file of an
// earlier run is not served in its place.
func TestMainIsLostWithItsSupervisor(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(sayingSpec("once"))
	l.awaitOutput(sb)
	l.Must("stop", sb.Stop(l.Context(), 0))
	if _, err := sb.Process(l.Context(), atoll.MainProcess); err != nil {
		t.Errorf("process after a stop: %v", err)
	}
	l.Must("start", sb.Start(l.Context()))
	main, err := sb.Process(l.Context(), atoll.MainProcess)
	l.Must("process", err)
	l.Must("kill", syscall.Kill(l.SupervisorOf(sb), syscall.SIGKILL))
	l.AwaitState(sb, atoll.StateFailed)
	l.checkMainLost(sb)
	_, err = main.Wait(l.Context())
	supervisedtest.WantKind(t, "wait", err, atoll.ErrStopped, "sandbox has failed")
	supervisedtest.WantKind(t, "attach", main.Attach(l.Context(), &atoll.Attachment{Stdout: io.Discard}), atoll.ErrStopped, "sandbox has failed")
}

// Neither a stop nor a start fails because the main process cannot be saved, or its file is
// damaged.
func TestMainThatCannotBeKept(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(sayingSpec("something"))
	l.awaitOutput(sb)
	l.Must("be in the way", os.Mkdir(l.endedPath(sb)+".tmp", 0o700))
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.AwaitState(sb, atoll.StateStopped)
	l.checkMainLost(sb)
	l.Must("start", sb.Start(l.Context()))
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("truncate", os.Truncate(l.endedPath(sb), 10))
	l.checkMainLost(sb)
	l.Must("start", sb.Start(l.Context()))
}

// Only the supervisor keeps the main process of a sandbox with AutoRemove, which goes soon
// anyway.
func TestMainOfAutoRemoveIsNotKept(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Cmd: []string{"echo", "out"}, AutoRemove: true})
	l.AwaitState(sb, atoll.StateStopped)
	main, err := sb.Process(l.Context(), atoll.MainProcess)
	l.Must("process", err)
	var out strings.Builder
	if err := main.Attach(l.Context(), &atoll.Attachment{Stdout: &out}); err != nil || out.String() != "out\n" {
		t.Errorf("attach: %q, %v", out.String(), err)
	}
	if _, err := os.Lstat(l.endedPath(sb)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its file: %v, want none", err)
	}
}

// The API gives the same answers about a stopped sandbox as about a running one.
func TestMainOverHTTP(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Cmd: []string{"sh", "-c", "head -c 1048576 /dev/zero; echo the end; echo err >&2; exit 3"}})
	l.AwaitState(sb, atoll.StateFailed)
	h, err := api.NewHandler(l.Provider, api.Options{})
	l.Must("handler", err)
	defer h.Close()
	srv := httptest.NewServer(h)
	defer srv.Close()
	for path, want := range map[string]struct{ offset, body string }{
		"":                                   {"", `"exit":{"code":3,`},
		"/wait":                              {"", `"code":3,`},
		"/output?offset=5":                   {"8", "the end\n"},
		"/output?offset=1048580&follow=true": {"1048580", "end\n"},
		"/output?offset=-1":                  {"", ""},
		"/output?stream=stderr":              {"0", "err\n"},
		"/output?offset=1048585":             {"", `"kind":"invalid"`},
		"/output?stream=stderr&offset=4":     {"4", ""},
		"/output?stream=stderr&follow=true":  {"0", "err\n"},
	} {
		res, err := http.Get(srv.URL + "/v1/sandboxes/" + sb.ID() + "/processes/" + atoll.MainProcess + path)
		l.Must("get "+path, err)
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		l.Must("read "+path, err)
		got := string(body)
		if !strings.Contains(got, want.body) || want.body == "" && got != "" || res.Header.Get(api.OffsetHeader) != want.offset {
			t.Errorf("%s: %s, offset %q, %.200q; want %q, %q", path, res.Status, res.Header.Get(api.OffsetHeader), got, want.offset, want.body)
		}
	}
}
