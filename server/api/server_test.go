package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// doRequest makes a request without a Client.
func (r *rig) doRequest(t *testing.T, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.server.Client().CloseIdleConnections()
	return resp, string(b)
}

func TestTokens(t *testing.T) {
	r := newRig(t, Options{Tokens: map[string]auth.Account{"sesame": {Name: "ali", Role: "user"}}})
	var account auth.Account
	r.list = func(ctx context.Context, _ atoll.Filter) ([]atoll.Status, error) {
		account = auth.AccountFrom(ctx)
		return nil, nil
	}
	if _, err := r.client.List(t.Context(), atoll.Filter{}); err != nil || account.Name != "ali" || account.Role != "user" || account.IsRestricted() {
		t.Errorf("List by %+v: %v", account, err)
	}
	for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer sesam", "Bearer sesamee", "Basic sesame", "sesame"} {
		resp, body := r.doRequest(t, "GET", "/v1/sandboxes", "", "Authorization", auth)
		err := wire.DecodeError(resp.StatusCode, []byte(body), "", "")
		if resp.StatusCode != 401 || !errors.Is(err, atoll.ErrDenied) || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: %d %v", auth, resp.StatusCode, err)
		}
	}
	for _, path := range []string{"/health", "/api/health"} {
		if resp, body := r.doRequest(t, "GET", path, ""); resp.StatusCode != 200 || body != `{"status":"ok"}` {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if resp, _ := r.doRequest(t, "GET", "/v1/sandboxes/"+fakeID+"/ports/80/", ""); resp.StatusCode != 401 {
		t.Errorf("a port is open to all: %d", resp.StatusCode)
	}
	_, err := client.New(t.Context(), client.Options{URL: r.server.URL, Token: "wrong"})
	if !errors.Is(err, atoll.ErrDenied) {
		t.Errorf("New with a wrong token: %v", err)
	}
	wrong, err := client.New(t.Context(), client.Options{URL: r.server.URL, Token: "wrong", Info: &atoll.Info{}})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if _, err := wrong.Sandbox(fakeID).Exec(t.Context(), &atoll.Command{Args: []string{"true"}, Stdout: io.Discard}); !errors.Is(err, atoll.ErrDenied) {
		t.Errorf("Exec with a wrong token: %v", err)
	}
}

func TestVerify(t *testing.T) {
	verify := func(_ context.Context, token string) (auth.Account, error) {
		switch token {
		case "good":
			return auth.Account{}, nil
		case "later":
			return auth.Account{}, atoll.Errorf("verify", "", atoll.ErrUnavailable, "no database")
		}
		return auth.Account{}, errors.New("never seen")
	}
	h, err := NewHandler(newFake(), Options{Verify: verify})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := &rig{}
	r.server = newServer(t, h)
	for token, want := range map[string]int{"good": 200, "later": 503, "bad": 401} {
		if resp, body := r.doRequest(t, "GET", "/v1/info", "", "Authorization", "bearer "+token); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", token, resp.StatusCode, body, want)
		}
	}
	for name, opts := range map[string]Options{
		"empty": {Tokens: map[string]auth.Account{"": {}}},
	} {
		if _, err := NewHandler(newFake(), opts); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("NewHandler with %s: %v", name, err)
		}
	}
	if got := auth.AccountFrom(context.Background()); got.Name != auth.DefaultAccount || got.Role != auth.DefaultRole || got.IsRestricted() {
		t.Errorf("nobody is %+v", got)
	}
}

func TestForwardRequestIDAndTrace(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	h, err := NewHandler(r.client, Options{}) // a second hop in front of the first
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	outer := &rig{server: newServer(t, h)}
	var seen http.Header
	r.list = func(ctx context.Context, _ atoll.Filter) ([]atoll.Status, error) {
		seen = http.Header{}
		wire.SendTrace(ctx, seen)
		seen.Set(wire.RequestIDHeader, wire.RequestID(ctx))
		return nil, atoll.E("list", "", atoll.ErrExhausted, nil)
	}
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	resp, body := outer.doRequest(t, "GET", "/v1/sandboxes", "", wire.RequestIDHeader, "my-id", "traceparent", trace, "tracestate", "a=b")
	if resp.Header.Get(wire.RequestIDHeader) != "my-id" || !strings.Contains(body, `"request_id":"my-id"`) {
		t.Errorf("the answer has id %q: %s", resp.Header.Get(wire.RequestIDHeader), body)
	}
	if seen.Get(wire.RequestIDHeader) != "my-id" || seen.Get("Traceparent") != trace || seen.Get("Tracestate") != "a=b" {
		t.Errorf("the provider saw %v", seen)
	}
	if !strings.Contains(log.String(), "request=my-id") || !strings.Contains(log.String(), "kind=exhausted") {
		t.Errorf("the log is %s", log.String())
	}
	rec := httptest.NewRecorder() // for a redirect
	h.ServeHTTP(rec, httptest.NewRequest("GET", "/v1//sandboxes", nil))
	if id := rec.Header().Get(wire.RequestIDHeader); rec.Code/100 != 3 || len(id) != 16 {
		t.Errorf("a path that is not clean: %d with id %q", rec.Code, id)
	}
	for _, bad := range []string{"", "two words", strings.Repeat("x", 200), "é"} {
		resp, _ := outer.doRequest(t, "GET", "/health", "", wire.RequestIDHeader, bad)
		if got := resp.Header.Get(wire.RequestIDHeader); got == bad || len(got) != 16 {
			t.Errorf("id %q was answered with %q", bad, got)
		}
	}
}

func TestPanicClosesConnection(t *testing.T) {
	logged := make(chan string, 10) // net/http retries on a reused connection
	log := writerFunc(func(b []byte) (int, error) { logged <- string(b); return len(b), nil })
	r := newRig(t, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	var calm atomic.Bool
	r.list = func(context.Context, atoll.Filter) ([]atoll.Status, error) {
		if !calm.Load() {
			panic("out of cheese")
		}
		return nil, nil
	}
	if _, err := r.client.List(t.Context(), atoll.Filter{}); !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("List: %v, want %q", err, atoll.ErrUnavailable)
	}
	if s := <-logged; !strings.Contains(s, "out of cheese") || !strings.Contains(s, "path=/v1/sandboxes request=") || strings.Contains(s, `request=""`) {
		t.Errorf("the log is %s", s)
	}
	calm.Store(true)
	if _, err := r.client.List(t.Context(), atoll.Filter{}); err != nil {
		t.Errorf("List after that: %v", err)
	}
}

func TestPlainExec(t *testing.T) {
	r := newRig(t, Options{})
	const path = "/v1/sandboxes/" + fakeID + "/exec"
	for _, c := range []struct{ body, want string }{
		{`{"args":["echo","hi"]}`, `{"code":0,"duration":"1s","stdout":"hi\n","stdout_encoding":"utf-8","stdout_truncated":false,`},
		{`{"args":["err","no"]}`, `"stderr":"no","stderr_encoding":"utf-8","stderr_truncated":false}`},
		{`{"args":["cat"],"stdin":"in"}`, `"stdout":"in"`},
		{`{"args":["cat"],"stdin":"/wA=","stdin_encoding":"base64"}`, `"stdout":"/wA=","stdout_encoding":"base64"`},
		{`{"args":["cat"],"stdin":"ab€","limit":4}`, `"stdout":"ab","stdout_encoding":"utf-8","stdout_truncated":true`},
		{`{"args":["exit","3"]}`, `{"code":3,"duration":"1s",`},
	} {
		resp, body := r.doRequest(t, "POST", path, c.body)
		if resp.StatusCode != 200 || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %s", c.body, resp.StatusCode, body, c.want)
		}
	}
	if resp, body := r.doRequest(t, "POST", path, `{"args":["nope"]}`); resp.StatusCode != 422 || !strings.Contains(body, "command not found") {
		t.Errorf("no such command: %d %s", resp.StatusCode, body)
	}
}

func TestExecEndsWithClient(t *testing.T) {
	r := newRig(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", r.server.URL+"/v1/sandboxes/"+fakeID+"/exec", strings.NewReader(`{"args":["sleep"]}`))
	if err != nil {
		t.Fatal(err)
	}
	started := func() *fakeProc {
		r.box.mu.Lock()
		defer r.box.mu.Unlock()
		return r.box.procs["p1"]
	}
	go func() {
		eventually(t, "it is started", func() bool { return started() != nil })
		cancel()
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Error("the request was answered")
	}
	finishesSoon(t, "the end of a command whose caller has gone", func() { <-started().done })
}

func TestOutputFromAnOffset(t *testing.T) {
	r := newRig(t, Options{})
	p := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
		switch {
		case a.StderrFrom == 3 && a.Stderr != nil && !a.NoFollow:
			io.WriteString(a.Stderr, "err")
		case a.Stdout != nil && a.StdoutFrom == 9 && a.NoFollow:
			a.Gap(atoll.Stdout, 9, 12)
			io.WriteString(a.Stdout, "out")
		case a.Stdout != nil && a.StdoutFrom == 0:
		default:
			return atoll.Errorf("attach", "", atoll.ErrInvalid, "no such offset")
		}
		return nil
	})
	path := "/v1/sandboxes/" + fakeID + "/processes/" + p.ID() + "/output"
	for _, c := range []struct {
		query, offset, body string
		status              int
	}{
		{"?stream=stderr&offset=3&follow=true", "3", "err", 200},
		{"?offset=9", "12", "out", 200},
		{"", "0", "", 200},
		{"?offset=100", "", "", 400},
		{"?stream=stdin", "", "", 400},
	} {
		resp, body := r.doRequest(t, "GET", path+c.query, "")
		if resp.StatusCode != c.status || resp.Header.Get(wire.OffsetHeader) != c.offset || c.status == 200 && body != c.body {
			t.Errorf("%s: %d, offset %q, %q", c.query, resp.StatusCode, resp.Header.Get(wire.OffsetHeader), body)
		}
	}
}

func TestStdinByRequest(t *testing.T) {
	r := newRig(t, Options{MaxUpload: 100})
	var got []byte
	var end error
	p := r.newAttachable(t, func(_ context.Context, a *atoll.Attachment) error {
		got, end = io.ReadAll(a.Stdin)
		return nil
	})
	path := "/v1/sandboxes/" + fakeID + "/processes/" + p.ID() + "/stdin"
	for _, c := range []struct {
		query string
		want  error
	}{{"", errKeepOpen}, {"?close=true", nil}} {
		resp, body := r.doRequest(t, "POST", path+c.query, "typed")
		if resp.StatusCode != 204 || string(got) != "typed" || end != c.want {
			t.Errorf("%q: %d %s; the process read %q, %v", c.query, resp.StatusCode, body, got, end)
		}
	}
	if resp, body := r.doRequest(t, "POST", path, strings.Repeat("x", 101)); resp.StatusCode != 413 || end == nil {
		t.Errorf("too much: %d %s; the process read to %v", resp.StatusCode, body, end)
	}
}

func TestAbandonedCreateIsRemoved(t *testing.T) {
	r := newRig(t, Options{})
	removed := make(chan atoll.RemoveOptions, 10)
	r.box.remove = func(ctx context.Context, opts atoll.RemoveOptions) error {
		removed <- opts
		return ctx.Err()
	}
	for name, create := range map[string]func(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error){
		"by the provider": func(ctx context.Context, _ *atoll.Spec) (atoll.Sandbox, error) {
			<-ctx.Done()
			removed <- atoll.RemoveOptions{Volumes: true} // as expected
			return nil, ctx.Err()
		},
		"though it was made": func(ctx context.Context, _ *atoll.Spec) (atoll.Sandbox, error) {
			<-ctx.Done()
			return r.box, nil
		},
	} {
		called := make(chan struct{})
		r.create = func(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
			close(called)
			return create(ctx, spec)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-called; cancel() }()
		if _, err := r.client.Create(ctx, &atoll.Spec{}); err != context.Canceled {
			t.Errorf("%s: Create = %v", name, err)
		}
		select {
		case opts := <-removed:
			if !opts.Volumes {
				t.Errorf("%s: the volume was kept", name)
			}
		default:
			t.Errorf("%s: the sandbox is left when Create returns", name)
		}
	}
}

func TestSnapshotOptions(t *testing.T) {
	r := newRig(t, Options{})
	r.box.snapshot = func(_ context.Context, opts atoll.SnapshotOptions) (atoll.Snapshot, error) {
		return atoll.Snapshot{ID: "taken", Work: !opts.NoWork}, nil
	}
	snap, err := atoll.TakeSnapshot(t.Context(), r.sb)
	bare, bareErr := atoll.TakeSnapshot(t.Context(), r.sb, atoll.WithoutWork())
	if err != nil || bareErr != nil || !snap.Work || bare.Work {
		t.Errorf("TakeSnapshot = %+v, %v; WithoutWork: %+v, %v", snap, err, bare, bareErr)
	}
}

func TestAbandonedSnapshotIsRemoved(t *testing.T) {
	r := newRig(t, Options{})
	removed := make(chan string, 10)
	r.removeSnapshot = func(ctx context.Context, id string) error {
		removed <- id
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.box.snapshot = func(ctx context.Context, _ atoll.SnapshotOptions) (atoll.Snapshot, error) {
		cancel()
		<-ctx.Done()
		return atoll.Snapshot{ID: "taken"}, nil
	}
	if snap, err := atoll.TakeSnapshot(ctx, r.sb); err != context.Canceled {
		t.Errorf("TakeSnapshot = %+v, %v", snap, err)
	}
	if id := <-removed; id != "taken" {
		t.Errorf("the snapshot %q was removed", id)
	}
}

// A client stops waiting for a snapshot although the server does not answer.
func TestSnapshotOfASilentServer(t *testing.T) {
	r := newRig(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	defer close(end)
	r.box.snapshot = func(context.Context, atoll.SnapshotOptions) (atoll.Snapshot, error) {
		cancel()
		<-end
		return atoll.Snapshot{ID: "taken"}, nil
	}
	if snap, err := atoll.TakeSnapshot(ctx, r.sb); err != context.Canceled {
		t.Errorf("TakeSnapshot = %+v, %v", snap, err)
	}
}

// However late a client stops waiting for a snapshot, it either gets the snapshot or nothing is left.
func TestSnapshotIsReturnedOrRemoved(t *testing.T) {
	r := newRig(t, Options{})
	var taken, removed atomic.Int64
	r.box.snapshot = func(context.Context, atoll.SnapshotOptions) (atoll.Snapshot, error) {
		taken.Add(1)
		return atoll.Snapshot{ID: "taken"}, nil
	}
	r.removeSnapshot = func(context.Context, string) error {
		removed.Add(1)
		return nil
	}
	returned := int64(0)
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		if snap, err := atoll.TakeSnapshot(ctx, r.sb); err == nil && snap.ID == "taken" {
			returned++
		} else if err != context.DeadlineExceeded {
			t.Errorf("TakeSnapshot = %+v, %v", snap, err)
		}
		cancel()
	}
	eventually(t, "each snapshot is removed or returned", func() bool { return taken.Load() == removed.Load()+returned })
}

func TestCreateRefusesInvalidUTF8(t *testing.T) {
	r := newRig(t, Options{})
	r.create = func(_ context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
		t.Errorf("the server got %+v", spec)
		return r.box, nil
	}
	spec := &atoll.Spec{Cmd: []string{"cat", "\xff"}}
	if _, err := r.client.Create(t.Context(), spec); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Create: %v, want %q", err, atoll.ErrInvalid)
	}
	if err := r.client.Prepare(t.Context(), spec, nil); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Prepare: %v, want %q", err, atoll.ErrInvalid)
	}
}

func TestWatchForwardsEvents(t *testing.T) {
	r := newRig(t, Options{})
	end := error(atoll.Errorf("watch", "", atoll.ErrUnavailable, "the reader is too slow"))
	r.watch = func(ctx context.Context) iter.Seq2[atoll.Event, error] {
		return func(yield func(atoll.Event, error) bool) {
			for _, s := range []atoll.State{atoll.StateCreating, atoll.StateRunning} {
				if !yield(atoll.Event{Type: atoll.EventState, Status: atoll.Status{ID: fakeID, State: s}, Time: time.Unix(1, 0).UTC()}, nil) {
					return
				}
			}
			if yield(atoll.Event{Type: atoll.EventSynced}, nil) {
				yield(atoll.Event{}, end)
			}
		}
	}
	var got []string
	for ev, err := range r.client.Watch(t.Context()) {
		if err != nil {
			got = append(got, err.Error())
			if !errors.Is(err, atoll.ErrUnavailable) {
				t.Errorf("the end is %v", err)
			}
			continue
		}
		got = append(got, string(ev.Type)+string(ev.Status.State))
	}
	if want := "statecreating staterunning synced watch: the reader is too slow"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWatchEndsWithServer(t *testing.T) {
	r := newRig(t, Options{})
	finishesSoon(t, "the end of a Watch", func() {
		for _, err := range r.client.Watch(t.Context()) {
			if err != nil {
				if !errors.Is(err, atoll.ErrUnavailable) {
					t.Errorf("the end is %v", err)
				}
				return
			}
			go r.handler.Close()
		}
		t.Error("the Watch ended without an error")
	})
}

// TestCloseWithBlockedClient tests responses that fill the connection.
func TestCloseWithBlockedClient(t *testing.T) {
	r := newRig(t, Options{})
	var sent atomic.Int64
	r.watch = func(ctx context.Context) iter.Seq2[atoll.Event, error] {
		return func(yield func(atoll.Event, error) bool) {
			ev := atoll.Event{Type: atoll.EventState, Status: atoll.Status{Reason: strings.Repeat("x", 100_000)}}
			for yield(ev, nil) {
				sent.Add(1)
			}
		}
	}
	p := r.newAttachable(t, func(ctx context.Context, a *atoll.Attachment) error {
		for {
			if _, err := a.Stdout.Write(make([]byte, 100_000)); err != nil {
				return err
			}
			sent.Add(1)
		}
	})
	for _, path := range []string{"/v1/watch", "/v1/sandboxes/" + fakeID + "/processes/" + p.ID() + "/output?follow=true"} {
		resp, err := http.Get(r.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	rawText(t, dialRaw(t, r, "/processes/"+p.ID()+"/attach"), `{"type":"attach","stdout":true}`)
	stuck := int64(-1)
	eventually(t, "all are stuck", func() bool {
		time.Sleep(50 * time.Millisecond)
		before := stuck
		stuck = sent.Load()
		return stuck == before
	})
	finishesSoon(t, "Close beside clients that do not read", func() { r.handler.Close() })
}

func TestLargeEvent(t *testing.T) {
	r := newRig(t, Options{})
	large := strings.Repeat("long\nlines\r\n", 50_000)
	r.watch = func(ctx context.Context) iter.Seq2[atoll.Event, error] {
		return func(yield func(atoll.Event, error) bool) {
			yield(atoll.Event{Type: atoll.EventState, Status: atoll.Status{Reason: large}}, nil)
		}
	}
	for ev, err := range r.client.Watch(t.Context()) {
		if err != nil || ev.Status.Reason != large {
			t.Errorf("%d bytes came, %v", len(ev.Status.Reason), err)
		}
		break
	}
}

// A preparer is a fake that reports progress.
type preparer struct {
	*fake
	err error
}

func (p preparer) Prepare(_ context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	for i := range 3 {
		progress(atoll.Progress{Phase: "pull", Item: spec.Image, Done: int64(i), Total: 3})
	}
	return p.err
}

func TestPrepareReportsProgress(t *testing.T) {
	for _, want := range []error{nil, atoll.ErrNotExist} {
		h, err := NewHandler(preparer{newFake(), want}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		c, err := client.New(t.Context(), client.Options{URL: newServer(t, h).URL})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var got []atoll.Progress
		err = c.Prepare(t.Context(), &atoll.Spec{Image: "img"}, func(p atoll.Progress) { got = append(got, p) })
		if !errors.Is(err, want) || len(got) != 3 || got[2] != (atoll.Progress{Phase: "pull", Item: "img", Done: 2, Total: 3}) {
			t.Errorf("Prepare = %v with %v", err, got)
		}
		if err := c.Prepare(t.Context(), &atoll.Spec{}, nil); !errors.Is(err, want) {
			t.Errorf("Prepare without progress = %v", err)
		}
	}
}

func TestMetricsAreMounted(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "up 1\n") })
	r := newRig(t, Options{Metrics: metrics, Tokens: map[string]auth.Account{"t": {}}})
	if resp, _ := r.doRequest(t, "GET", "/metrics", ""); resp.StatusCode != 401 {
		t.Errorf("without a token: %d", resp.StatusCode)
	}
	if _, body := r.doRequest(t, "GET", "/metrics", "", "Authorization", "Bearer t"); body != "up 1\n" {
		t.Errorf("got %q", body)
	}
}

func TestDocsAreMounted(t *testing.T) {
	var log bytes.Buffer
	docs := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	r := newRig(t, Options{
		Docs: docs, Tokens: map[string]auth.Account{"t": {}},
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	for _, path := range []string{"/", "/docs", "/openapi.json"} {
		resp, body := r.doRequest(t, "GET", path, "", wire.RequestIDHeader, "my-id")
		if body != path || resp.Header.Get(wire.RequestIDHeader) != "my-id" {
			t.Errorf("%s: %q with id %q", path, body, resp.Header.Get(wire.RequestIDHeader))
		}
		if want := `op="GET ` + path + `" request=my-id`; !strings.Contains(log.String(), want) {
			t.Errorf("the log does not have %s:\n%s", want, &log)
		}
	}
}

func TestStopForwardsGrace(t *testing.T) {
	r := newRig(t, Options{})
	for _, grace := range []time.Duration{-1, 0, 1500 * time.Millisecond} {
		if err := r.sb.Stop(t.Context(), grace); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(r.box.calls, ", "); got != "stop -1ns, stop 0s, stop 1.5s" {
		t.Errorf("the provider got %s", got)
	}
}

func TestRemoveUnknownSandbox(t *testing.T) {
	r := newRig(t, Options{})
	if err := r.client.Sandbox(strings.Repeat("f", 32)).Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if resp, _ := r.doRequest(t, "DELETE", "/v1/sandboxes/"+strings.Repeat("f", 32), ""); resp.StatusCode != 404 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestNewClientErrors(t *testing.T) {
	for url, want := range map[string]atoll.Kind{
		"":                        atoll.ErrInvalid,
		"ftp://x":                 atoll.ErrInvalid,
		"unix://host/path":        atoll.ErrInvalid,
		"http://":                 atoll.ErrInvalid,
		"http://\x00":             atoll.ErrInvalid,
		"unix:///nowhere/at/all":  atoll.ErrUnavailable,
		"http://127.0.0.1:1":      atoll.ErrUnavailable,
		"https://127.0.0.1:1/sub": atoll.ErrUnavailable,
	} {
		_, err := client.New(t.Context(), client.Options{URL: url})
		if atoll.KindOf(err) != want || want == atoll.ErrUnavailable && !strings.Contains(err.Error(), url) {
			t.Errorf("New(%q): %v, want kind %s", url, err, want)
		}
	}
}

func TestPasswordInURL(t *testing.T) {
	for _, url := range []string{
		"http://user:geheim@127.0.0.1:1", "http://geheim@127.0.0.1:1", "http://user:geheim%zz@h", "ftp://user:geheim@h",
		"unix://user:geheim@/path", "user:geheim@h", "user:geheim@h/path", "//user:geheim@h",
	} {
		_, err := client.New(t.Context(), client.Options{URL: url})
		if atoll.KindOf(err) != atoll.ErrInvalid || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "write it like") {
			t.Errorf("New(%q): %v, want ErrInvalid without the password", url, err)
		}
	}
}

func TestInfoIsFetchedOnce(t *testing.T) {
	var asked atomic.Int32
	server := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		json.NewEncoder(w).Encode(atoll.Info{Name: "far"})
	}))
	c, err := client.New(t.Context(), client.Options{URL: server.URL})
	if err != nil || c.Info().Name != "far" || c.Info().Name != "far" || asked.Load() != 1 {
		t.Errorf("Info asked %d times: %v", asked.Load(), err)
	}
	c.Close()
	c, err = client.New(t.Context(), client.Options{URL: server.URL, Info: &atoll.Info{Name: "near"}})
	if err != nil || c.Info().Name != "near" || asked.Load() != 1 {
		t.Errorf("Info asked %d times: %v", asked.Load(), err)
	}
	c.Close()
	c.Close()
}
