package dynamo

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// fake returns a store of a service with handler f.
func fake(t *testing.T, f http.HandlerFunc) *Store {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	opts := optionsFor(server.URL)
	opts.Attempts = 2
	return open(t, opts)
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		status int
		code   string
		want   atoll.Kind
		says   string
	}{
		{400, "AccessDeniedException", atoll.ErrDenied, "policy"},
		{400, "UnrecognizedClientException", atoll.ErrDenied, "access key"},
		{400, "InvalidSignatureException", atoll.ErrDenied, "secret key"},
		{400, "ExpiredTokenException", atoll.ErrDenied, "no longer valid"},
		{400, "MissingAuthenticationTokenException", atoll.ErrDenied, "as planned"},
		{400, "ItemCollectionSizeLimitExceededException", atoll.ErrExhausted, "10 GB"},
		{400, "LimitExceededException", atoll.ErrExhausted, "as planned"},
		{400, "ValidationException", atoll.ErrInternal, "as planned"},
		{400, "UnknownOperationException", atoll.ErrUnsupported, "does not support"},
		{400, "ThrottlingException", atoll.ErrUnavailable, "try again later"},
		{400, "ProvisionedThroughputExceededException", atoll.ErrUnavailable, "try again later"},
		{400, "RequestLimitExceeded", atoll.ErrUnavailable, "try again later"},
		{500, "InternalServerError", atoll.ErrUnavailable, "try again later"},
		{503, "ServiceUnavailable", atoll.ErrUnavailable, "try again later"},
		{502, "Whatever", atoll.ErrUnavailable, "try again later"},
		{403, "Whatever", atoll.ErrDenied, "Whatever"},
		{418, "Teapot", atoll.ErrInternal, "Teapot"},
	} {
		t.Run(tt.code, func(t *testing.T) {
			s := fake(t, func(w http.ResponseWriter, r *http.Request) { refuse(w, tt.status, tt.code) })
			for what, err := range callEach(t.Context(), s, func() {}) {
				wantKind(t, what, err, tt.want)
				if err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v, want something with %q", what, err, tt.says)
				}
			}
		})
	}
	s := fake(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"x#ValidationException","message":"Item size to update has exceeded the maximum allowed size"}`)
	})
	wantKind(t, "an item that is too large", s.InsertConversation(t.Context(), conversation("x")), atoll.ErrExhausted)
}

// Errors distinguish endpoints that are not DynamoDB from unreachable ones.
func TestEndpointsThatAreNone(t *testing.T) {
	web := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(status)
			fmt.Fprint(w, "<!doctype html><html><head><title>Welcome<br></head><body>")
		}
	}
	for what, handler := range map[string]http.HandlerFunc{
		"a web site": web(200), "a web site with 404": web(404), "a redirect": web(301), "a text site": http.NotFound,
	} {
		for method, err := range callEach(t.Context(), fake(t, handler), func() {}) {
			wantKind(t, method+" at "+what, err, atoll.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), "correct the endpoint") {
				t.Errorf("%s at %s: %v", method, what, err)
			}
		}
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	for endpoint, says := range map[string]string{
		gone.URL: "does not answer", "https://host.invalid": "not found",
		"https" + strings.TrimPrefix(testenv.DynamoDB(t), "http"): "does not speak TLS",
	} {
		opts := optionsFor(endpoint)
		opts.Attempts = 2
		for method, err := range callEach(t.Context(), open(t, opts), func() {}) {
			wantKind(t, method+" at "+endpoint, err, atoll.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s at %s: %v, want something with %q", method, endpoint, err, says)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(none, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		opts Options
		says string
	}{
		{"a region", Options{Region: "eu-west-1"}, ""},
		{"no region", Options{}, "region"},
		{"an endpoint", Options{Endpoint: "https://db.example.org"}, ""},
		{"a local one", Options{Endpoint: "http://127.0.0.1:8000"}, ""},
		{"a plain one", Options{Endpoint: "http://db.example.org"}, "TLS"},
		{"a plain one that is allowed", Options{Endpoint: "http://db.example.org", PlainHTTP: true}, ""},
		{"credentials in it", Options{Endpoint: "https://a:b@db.example.org"}, "credentials"},
		{"another scheme", Options{Endpoint: "ftp://db.example.org"}, "https://"},
		{"a prefix", Options{Region: "eu-west-1", Prefix: "a/b"}, "prefix"},
		{"a long prefix", Options{Region: "eu-west-1", Prefix: strings.Repeat("a", 201)}, "prefix"},
		{"no certificates", Options{Region: "eu-west-1", CA: none}, "certificates"},
	} {
		s, err := Open(t.Context(), tt.opts)
		if err == nil {
			s.Close()
		}
		if tt.says == "" && err != nil || tt.says != "" && (atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want something with %q", tt.what, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "a:b@") {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://db.example.org")
	_, err := Open(t.Context(), Options{Region: "eu-west-1"})
	wantKind(t, "plain HTTP from the environment", err, atoll.ErrInvalid)
}

func TestCredentials(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	openReady(t, optionsFor(p.target))
	opts := optionsFor(p.endpoint)
	opts.Credentials = nil
	for method, err := range callEach(t.Context(), open(t, opts), func() {}) {
		wantKind(t, method+" without credentials", err, atoll.ErrDenied)
		if err != nil && !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
			t.Errorf("%s: %v", method, err)
		}
	}
	lost := errors.New("the file is not there")
	opts.Credentials = func(context.Context) (Credentials, error) { return Credentials{}, lost }
	_, err := open(t, opts).FindConversation(t.Context(), "acme", "one")
	if !errors.Is(err, lost) || atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("FindConversation with credentials that cannot be read: %v", err)
	}
	if asked := p.operations(); len(asked) > 0 {
		t.Errorf("asked %q without credentials", asked)
	}
	opts.Credentials = nil
	t.Setenv("AWS_ACCESS_KEY_ID", "testak")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testsecret1")
	insert(t, open(t, opts), "one")
}

// A certificate from an unknown authority is refused.
func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "{}") }))
	defer server.Close()
	opts := optionsFor(server.URL)
	_, err := open(t, opts).FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation", err, atoll.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "CA") {
		t.Errorf("FindConversation: %v", err)
	}
	opts.CA = filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	if err := os.WriteFile(opts.CA, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, opts).FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation of a missing one", err, atoll.ErrNotExist)
}

// Attributes of an unexpected type are reported as damage.
func TestDamage(t *testing.T) {
	s := openReady(t, optionsFor(testenv.DynamoDB(t)))
	insert(t, s, "one")
	for name, v := range (item{
		attrTurns: textOf("one"), attrTurn: textOf("turn"), attrOrganization: numberOf(1), attrStats: numberOf(1),
	}) {
		c := insert(t, s, "damaged-"+strings.ReplaceAll(name, "_", "-"))
		var e expr
		e.setField(v, name)
		if _, err := s.updateItem(t.Context(), conversationsTable, "acme", c.ID, &e); err != nil {
			t.Fatal(err)
		}
		_, err := s.FindConversation(t.Context(), "acme", c.ID)
		wantKind(t, "FindConversation with a damaged "+name, err, atoll.ErrInternal)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("FindConversation: %v, want something with %q", err, name)
		}
	}
	m := message("key", large)
	if err := s.AddMessage(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for _, key := range leftovers(t, s) {
		if strings.HasSuffix(key, "1") {
			it, err := s.getItem(t.Context(), conversationsTable, "acme", "one")
			if err != nil {
				t.Fatal(err)
			}
			if err := s.removeItems(t.Context(), messagesTable, collectionKey("acme", "one", fieldsOf(it).textField(attrBirth)), []string{key}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := s.Messages(t.Context(), "acme", "one", store.Page{Limit: 1})
	wantKind(t, "Messages with a missing part", err, atoll.ErrInternal)
}
