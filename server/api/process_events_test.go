package api_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A sentEvent is a server-sent event of a process.
type sentEvent struct {
	id, name string
	data     struct {
		Type, ID, Text, Message string
		Offset                  int64
		Base64                  []byte
		Exit                    *atoll.Exit
	}
}

// processServer serves a sandbox whose commands run on this machine, and returns the URL of the sandbox.
func processServer(t *testing.T) string {
	t.Helper()
	p := openLocal(t)
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() { server.Close(); h.Close() })
	return server.URL + "/v1/sandboxes/" + sb.ID()
}

// openEvents sends a request and returns a function that reads the next event. It returns false at the end.
func openEvents(t *testing.T, method, url, body, last string) (next func() (sentEvent, bool), status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return func() (ev sentEvent, ok bool) {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return ev, false
			}
			field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch field {
			case "id":
				ev.id = value
			case "event":
				ev.name = value
			case "data":
				if err := json.Unmarshal([]byte(value), &ev.data); err != nil {
					t.Fatal(err)
				}
			case "":
				return ev, true
			}
		}
	}, resp.StatusCode
}

// readEvents returns all events, and the output of both streams.
func readEvents(t *testing.T, next func() (sentEvent, bool)) (all []sentEvent, stdout, stderr string) {
	t.Helper()
	for {
		ev, ok := next()
		if !ok {
			return all, stdout, stderr
		}
		switch all = append(all, ev); ev.name {
		case "stdout":
			if int64(len(stdout)) != ev.data.Offset {
				t.Errorf("an event with offset %d after %d bytes", ev.data.Offset, len(stdout))
			}
			stdout += ev.data.Text + string(ev.data.Base64)
		case "stderr":
			stderr += ev.data.Text + string(ev.data.Base64)
		}
	}
}

func TestExecEvents(t *testing.T) {
	url := processServer(t)
	next, status := openEvents(t, "POST", url+"/exec/events", `{"args":["sh","-c","printf 'out \\303'; echo err >&2; sleep .2; printf '\\274\\n'; sleep .2; printf '\\377x'; exit 3"]}`, "")
	all, stdout, stderr := readEvents(t, next)
	if status != http.StatusOK || stdout != "out ü\n\xffx" || stderr != "err\n" {
		t.Fatalf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	if first, last := all[0], all[len(all)-1]; first.name != "started" || first.data.ID == "" || last.name != "exit" || last.id != "end" || last.data.Exit == nil || last.data.Exit.Code != 3 {
		t.Errorf("the first event is %+v, the last %+v", first, last)
	}
	for _, ev := range all {
		if ev.name != ev.data.Type || ev.name == "stdout" && (ev.data.Base64 != nil) != strings.Contains(string(ev.data.Base64), "\xff") {
			t.Errorf("event %+v", ev)
		}
	}

	// A client that comes back gets what follows the last event that it has.
	follow := url + "/processes/" + all[0].data.ID + "/events"
	next, _ = openEvents(t, "GET", follow, "", "")
	if _, again, _ := readEvents(t, next); again != stdout {
		t.Errorf("from the beginning: %q", again)
	}
	next, _ = openEvents(t, "GET", follow, "", "7-4")
	rest := ""
	for ev, ok := next(); ok; ev, ok = next() {
		rest += ev.data.Text + string(ev.data.Base64)
	}
	if rest != "\xffx" {
		t.Errorf("the rest is %q", rest)
	}
	if _, status := openEvents(t, "GET", follow, "", "end"); status != http.StatusNoContent {
		t.Errorf("after the end: status %d", status)
	}
	for _, query := range []string{"?stdout_from=-1", "?stdout_from=x"} {
		if _, status := openEvents(t, "GET", follow+query, "", ""); status != http.StatusBadRequest {
			t.Errorf("%s: status %d", query, status)
		}
	}
	if _, status := openEvents(t, "GET", follow, "", "nonsense"); status != http.StatusBadRequest {
		t.Errorf("a strange Last-Event-ID: status %d", status)
	}
}

// Input is a request of its own.
func TestExecEventsWithInput(t *testing.T) {
	url := processServer(t)
	next, _ := openEvents(t, "POST", url+"/exec/events", `{"args":["cat"],"open_stdin":true}`, "")
	started, ok := next()
	if !ok {
		t.Fatal("no event")
	}
	resp, err := http.Post(url+"/processes/"+started.data.ID+"/stdin?close=true", "application/octet-stream", strings.NewReader("hello\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusNoContent {
		t.Errorf("stdin: status %d, %v", resp.StatusCode, err)
	}
	resp.Body.Close()
	if all, stdout, _ := readEvents(t, next); stdout != "hello\n" || all[len(all)-1].data.Exit.Code != 0 {
		t.Errorf("stdout %q, %+v", stdout, all)
	}
}

// A command that cannot be started is an error of the request, and one of a sandbox that goes away the last event.
func TestExecEventsFail(t *testing.T) {
	url := processServer(t)
	if _, status := openEvents(t, "POST", url+"/exec/events", `{"args":["no-such-program"]}`, ""); status != http.StatusUnprocessableEntity && status != http.StatusNotFound && status != http.StatusBadRequest {
		t.Errorf("an unknown program: status %d", status)
	}
	if _, status := openEvents(t, "POST", url+"/exec/events", `{}`, ""); status != http.StatusBadRequest {
		t.Errorf("no command: status %d", status)
	}
	next, _ := openEvents(t, "POST", url+"/exec/events", `{"args":["sleep","1000"]}`, "")
	if _, ok := next(); !ok {
		t.Fatal("no event")
	}
	req, err := http.NewRequestWithContext(t.Context(), "DELETE", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if all, _, _ := readEvents(t, next); len(all) != 1 || all[0].name != "exit" && all[0].name != "error" {
		t.Errorf("after the removal: %+v", all)
	}
}
