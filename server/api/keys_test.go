package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// The client gets the time for a retry, in the error and as a header.
func TestRetryAfter(t *testing.T) {
	r := newRig(t, Options{})
	r.list = func(context.Context, atoll.Filter) ([]atoll.Status, error) {
		return nil, atoll.E("create", "web", atoll.ErrExhausted, atoll.WithRetryAfter(errors.New("the quota is used up"), 2100*time.Millisecond))
	}
	resp, body := r.doRequest(t, "GET", "/v1/sandboxes", "")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "3" || !strings.Contains(body, `"retry_after":3`) {
		t.Errorf("%d, Retry-After %q: %s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
	}
	_, err := r.client.List(t.Context(), atoll.Filter{})
	if after, known := atoll.RetryAfter(err); after != 3*time.Second || !known || atoll.KindOf(err) != atoll.ErrExhausted || !strings.Contains(err.Error(), "the quota is used up") {
		t.Errorf("%v: %s, %v", err, after, known)
	}
}

// The handler accepts tokens in Tokens and tokens that Verify accepts. It denies operations for
// admins to accounts that are bound to projects, and calls Denied.
func TestTokensAndVerify(t *testing.T) {
	var denied []string
	h, err := NewHandler(newFake(), Options{
		Tokens: map[string]auth.Account{"own": {}, "held": {Name: "held", Role: auth.RoleProject, Projects: []string{"web"}}},
		Verify: func(_ context.Context, token string) (auth.Account, error) {
			if token == "key" {
				return auth.Account{Name: "k", Role: auth.RoleProject, Projects: []string{"web"}, Key: "1"}, nil
			}
			return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")
		},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
		Denied:  func(ctx context.Context, what string) { denied = append(denied, auth.AccountFrom(ctx).Name+" "+what) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := &rig{server: newServer(t, h)}
	for _, tt := range []struct {
		token, path string
		want        int
	}{
		{"own", "/v1/info", 200}, {"held", "/v1/info", 200}, {"key", "/v1/info", 200}, {"no", "/v1/info", 401},
		{"own", "/metrics", 200}, {"held", "/metrics", 403}, {"key", "/v1/keys", 403}, {"own", "/v1/keys", 501}, {"key", "/v1/audit", 403}, {"own", "/v1/audit", 501},
	} {
		if resp, body := r.doRequest(t, "GET", tt.path, "", "Authorization", "Bearer "+tt.token); resp.StatusCode != tt.want {
			t.Errorf("%s %s: %d %s, want %d", tt.token, tt.path, resp.StatusCode, body, tt.want)
		}
	}
	if got := strings.Join(denied, ", "); got != "held GET /metrics, k GET /v1/keys, k GET /v1/audit" {
		t.Errorf("denied was %s", got)
	}
}

// A request in progress ends when its key becomes invalid, but not when Verify is unavailable.
func TestRevokedKeyEndsRequest(t *testing.T) {
	var answer atomic.Pointer[error]
	var asked atomic.Int64
	f := newFake()
	began := make(chan struct{})
	f.list = func(ctx context.Context, _ atoll.Filter) ([]atoll.Status, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	h, err := NewHandler(f, Options{verifyEvery: time.Millisecond, Verify: func(context.Context, string) (auth.Account, error) {
		asked.Add(1)
		if err := answer.Load(); err != nil {
			return auth.Account{}, *err
		}
		return auth.Account{Name: "k", Key: "1"}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := &rig{server: newServer(t, h)}
	ended := make(chan int, 1)
	go func() {
		resp, _ := r.doRequest(t, "GET", "/v1/sandboxes", "", "Authorization", "Bearer x")
		ended <- resp.StatusCode
	}()
	<-began
	unavailable := atoll.Errorf("", "", atoll.ErrUnavailable, "no database")
	answer.Store(&unavailable)
	for n := asked.Load(); asked.Load() < n+3; time.Sleep(time.Millisecond) {
	}
	select {
	case status := <-ended:
		t.Fatalf("the request ended with %d while Verify was unavailable", status)
	default:
	}
	gone := atoll.Errorf("", "", atoll.ErrDenied, "revoked")
	answer.Store(&gone)
	select {
	case <-ended:
	case <-time.After(testenv.Scale(10 * time.Second)):
		t.Error("the request continues after its key became invalid")
	}
}
