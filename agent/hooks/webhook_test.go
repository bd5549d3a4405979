package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestWebhookURL(t *testing.T) {
	for _, tt := range []struct {
		url  string
		opts WebhookOptions
		text string // of the error; "" for none
	}{
		{url: "https://hooks.example.com/x?y=z"},
		{url: "http://localhost:7/"},
		{url: "http://127.0.0.1/"},
		{url: "http://[::1]:7/"},
		{url: "http://hooks.example.com/x", opts: WebhookOptions{PlainHTTP: true}},
		{url: "http://hooks.example.com/secret", text: "use https"},
		{url: "https://user:secret@hooks.example.com/", text: "must not contain a user or password"},
		{url: "https:///secret", text: "like https://host/path"},
		{url: "https://host/#secret", text: "like https://host/path"},
		{url: "ftp://host/secret", text: "like https://host/path"},
		{url: "secret", text: "like https://host/path"},
		{url: "https://host:secret/", text: "like https://host/path"},
		{url: "", text: "like https://host/path"},
		{url: "https://host/secret", opts: WebhookOptions{Tries: -1}, text: "must be positive"},
		{url: "https://host/secret", opts: WebhookOptions{Timeout: -1}, text: "must be positive"},
		{url: "https://host/secret", opts: WebhookOptions{Backoff: -1}, text: "must be positive"},
	} {
		hook, err := Webhook(tt.url, tt.opts)
		if (err == nil) != (tt.text == "") || (hook != nil) != (err == nil) {
			t.Errorf("%s: %v, want %q", tt.url, err, tt.text)
			continue
		}
		if err != nil && (!errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want it to be invalid, with %q and without the secret", tt.url, err, tt.text)
		}
	}
}

func fixedSecret(secret string) func() (string, error) {
	return func() (string, error) { return secret, nil }
}

func TestWebhookRequest(t *testing.T) {
	var got *http.Request
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	hook, err := Webhook(srv.URL+"/in?q=1", WebhookOptions{Token: fixedSecret("letmein"), Key: fixedSecret("sign"), Transport: srv.Client().Transport})
	if err != nil {
		t.Fatal(err)
	}
	d := newHookData()
	d.Services = Services{Files: &filesStub{}, Messages: &messagesStub{}}
	if err := New(Options{}).ExecuteHook(t.Context(), OnMessage, hook, d); err != nil {
		t.Fatal(err)
	}
	if got.Method != http.MethodPost || got.URL.String() != "/in?q=1" || got.Header.Get("Content-Type") != "application/json" || got.Header.Get("Authorization") != "Bearer letmein" {
		t.Errorf("request %s %s with %v", got.Method, got.URL, got.Header)
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(got.Header.Get(SignatureHeader), "t="), ",")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if sig := got.Header.Get(SignatureHeader); err != nil || sig != Sign("sign", time.Unix(seconds, 0), body) || sig == Sign("other", time.Unix(seconds, 0), body) {
		t.Errorf("signature %q does not fit", sig)
	}
	var sent Delivery
	if err := json.Unmarshal(body, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.ID == "" || sent.ID != got.Header.Get(DeliveryHeader) || time.Since(sent.Time) > testenv.Scale(time.Minute) {
		t.Errorf("delivery %q of %s, header %q", sent.ID, sent.Time, got.Header.Get(DeliveryHeader))
	}
	want := Delivery{ID: sent.ID, Time: sent.Time, Hook: OnMessage, Conversation: "talk", Account: "acme", Agent: "coder", Sandbox: d.SandboxInfo, Message: d.Message, TokenUsage: d.TokenUsage}
	if !reflect.DeepEqual(sent, want) {
		t.Errorf("sent %+v, want %+v", sent, want)
	}
	keys := map[string]any{}
	if err := json.Unmarshal(body, &keys); err != nil || len(keys) != 9 || keys["conversation_id"] != "talk" {
		t.Errorf("keys %v, %v", keys, err)
	}
}

// The signature is spelt out for readers who verify it in another language.
func TestSign(t *testing.T) {
	const want = "t=1700000000,v1=9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
	if got := Sign("key", time.Unix(1700000000, 0), []byte("{}")); got != want {
		t.Errorf("Sign = %q, want %q", got, want)
	}
}

// A server answers each request with its next status, and further ones with the last.
type server struct {
	statuses []int
	requests []string // the id of each delivery
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, r.Header.Get(DeliveryHeader))
	status := s.statuses[min(len(s.requests), len(s.statuses))-1]
	switch status {
	case 0:
		return nil, errors.New("connection refused")
	case -1:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("secret")), Header: http.Header{"Location": {"/again"}}, Request: r}, nil
}

func TestWebhookTries(t *testing.T) {
	for _, tt := range []struct {
		name     string
		statuses []int
		opts     WebhookOptions
		requests int
		kind     atoll.Kind
		text     string
		most     time.Duration // upper bound of the duration
	}{
		{name: "taken", statuses: []int{200}, requests: 1},
		{name: "accepted", statuses: []int{202}, requests: 1},
		{name: "taken at last", statuses: []int{503, 0, 200}, requests: 3, most: 750 * time.Millisecond},
		{name: "failing", statuses: []int{500}, requests: 3, kind: atoll.ErrUnavailable, text: "webhook host: server answered 500 Internal Server Error", most: 750 * time.Millisecond},
		{name: "not there", statuses: []int{0}, requests: 3, kind: atoll.ErrUnavailable, text: "webhook host: connection refused", most: 750 * time.Millisecond},
		{name: "busy", statuses: []int{429}, requests: 3, kind: atoll.ErrExhausted, text: "429", most: 750 * time.Millisecond},
		{name: "silent", statuses: []int{-1}, requests: 3, kind: atoll.ErrTimeout, text: "no answer within 10s", most: 30*time.Second + 750*time.Millisecond},
		{name: "silent for once", statuses: []int{-1, 200}, requests: 2, most: 11 * time.Second},
		{name: "refused", statuses: []int{400}, requests: 1, kind: atoll.ErrInvalid, text: "server answered 400 Bad Request"},
		{name: "denied", statuses: []int{401}, requests: 1, kind: atoll.ErrDenied, text: "401"},
		{name: "forbidden", statuses: []int{403}, requests: 1, kind: atoll.ErrDenied, text: "403"},
		{name: "tried once", statuses: []int{500}, opts: WebhookOptions{Tries: 1}, requests: 1, kind: atoll.ErrUnavailable, text: "500"},
		{name: "tried often", statuses: []int{500}, opts: WebhookOptions{Tries: 30, Backoff: time.Second}, requests: 30, kind: atoll.ErrUnavailable, text: "500", most: 15*time.Second + 26*maxWebhookBackoff},
		{name: "redirected for ever", statuses: []int{307}, requests: 4, kind: atoll.ErrInvalid, text: "too many redirects"},
		{name: "redirected to GET", statuses: []int{302, 200}, requests: 1, kind: atoll.ErrInvalid, text: "only 307 and 308"},
		{name: "redirected", statuses: []int{308, 200}, requests: 2},
		{name: "no token", statuses: []int{200}, opts: WebhookOptions{Token: func() (string, error) { return "", errHook }}, kind: atoll.ErrUnavailable, text: "no way"},
		{name: "no key", statuses: []int{200}, opts: WebhookOptions{Key: func() (string, error) { return "", errHook }}, kind: atoll.ErrUnavailable, text: "no way"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{statuses: tt.statuses}
				tt.opts.Transport = s
				hook, err := Webhook("https://host/secret", tt.opts)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = hook(t.Context(), &HookData{})
				if atoll.KindOf(err) != tt.kind || err != nil && (!strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "secret")) {
					t.Errorf("error %v of kind %q, want %q of kind %q", err, atoll.KindOf(err), tt.text, tt.kind)
				}
				if len(s.requests) != tt.requests || time.Since(begin) > tt.most {
					t.Errorf("%d requests in %s, want %d in %s", len(s.requests), time.Since(begin), tt.requests, tt.most)
				}
				for _, id := range s.requests {
					if id != s.requests[0] {
						t.Errorf("the deliveries have different ids: %v", s.requests)
					}
				}
			})
		})
	}
}

// A webhook ends with its context, while it waits for an answer or for another attempt.
func TestWebhookContext(t *testing.T) {
	for _, status := range []int{-1, 500} {
		synctest.Test(t, func(t *testing.T) {
			hook, err := Webhook("https://host/", WebhookOptions{Transport: &server{statuses: []int{status}}, Backoff: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begin := time.Now()
			if err := hook(ctx, &HookData{}); err == nil || time.Since(begin) != time.Second {
				t.Errorf("error %v after %s, want one after a second", err, time.Since(begin))
			}
		})
	}
}

// A webhook follows no redirect to another host, and sends no secret there.
func TestWebhookElsewhere(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/", http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	hook, err := Webhook(srv.URL, WebhookOptions{Token: fixedSecret("letmein"), Transport: srv.Client().Transport})
	if err != nil {
		t.Fatal(err)
	}
	if err := hook(t.Context(), newHookData()); !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "another host") || reached {
		t.Errorf("error %v, reached %t; want it to be invalid, and not to be followed", err, reached)
	}
}

// Data without a JSON form is an error, and isn't sent.
func TestWebhookBadData(t *testing.T) {
	s := &server{statuses: []int{200}}
	hook, err := Webhook("https://host/", WebhookOptions{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	d := newHookData()
	d.Message.ToolCalls[0].Input = []byte("{")
	if err := hook(t.Context(), d); !errors.Is(err, atoll.ErrInvalid) || len(s.requests) != 0 {
		t.Errorf("error %v, %d requests; want it to be invalid, and none", err, len(s.requests))
	}
}
