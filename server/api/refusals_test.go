package api_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// The log has the address of a client whose token is refused, and never the token. Many such clients do not fill it.
func TestRefusedTokensAreLogged(t *testing.T) {
	p := openLocal(t)
	defer p.Close()
	var log bytes.Buffer
	h, err := api.NewHandler(p, api.Options{Tokens: map[string]auth.Account{"good": {}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	send := func(token string) int {
		r := httptest.NewRequest(http.MethodGet, "/v1/info", nil)
		r.RemoteAddr = "192.0.2.7:4711"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if code := send("good"); code != http.StatusOK || log.Len() > 0 {
		t.Fatalf("status %d, log %q", code, log.String())
	}
	for range 1000 {
		if code := send("S3CRET"); code != http.StatusUnauthorized {
			t.Fatalf("status %d", code)
		}
	}
	got := log.String()
	if !strings.Contains(got, `msg="token refused" op="GET /v1/info" from=192.0.2.7:4711`) || strings.Contains(got, "S3CRET") {
		t.Errorf("log %q", got)
	}
	if lines := strings.Count(got, "\n"); lines > 500 { // one a second
		t.Errorf("%d lines", lines)
	}
}
