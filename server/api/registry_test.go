package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api"
)

// Caches must not store a secret.
func TestSecretIsNotStored(t *testing.T) {
	p := openMock(t)
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	want, err := atoll.SecretOf(t.Context(), p, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	for path, status := range map[string]int{sb.ID(): http.StatusOK, atoll.NewID(): http.StatusNotFound} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/sandboxes/"+path+"/secret", nil))
		if w.Code != status || strings.Contains(w.Body.String(), want) != (status == http.StatusOK) {
			t.Errorf("%d %s, want %d", w.Code, w.Body, status)
		}
		if status == http.StatusOK && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("Cache-Control is %q", w.Header().Get("Cache-Control"))
		}
	}
}
