package secretstore

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
)

// sourceVariable makes the test binary print the value at a source.
const sourceVariable = "ATOLL_TEST_SOURCE"

func TestMain(m *testing.M) {
	source := os.Getenv(sourceVariable)
	if source == "" {
		os.Exit(m.Run())
	}
	value, err := secretsource.Read(context.Background(), source)
	fmt.Println(string(value), err)
}

// checkReads checks the values at sources, by this process and by a program of its own.
func checkReads(t *testing.T, values map[string]string, failures map[string]failure) {
	t.Helper()
	for source, want := range values {
		if got, err := Read(t.Context(), source); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", source, got, err, want)
		}
		if got, err := secretsource.Read(t.Context(), source); string(got) != want || err != nil {
			t.Errorf("%s by a program: got %q, %v, want %q", source, string(got), err, want)
		}
	}
	for source, want := range failures {
		got, err := secretsource.Read(t.Context(), source)
		if got != "" || atoll.KindOf(err) != want.kind || !strings.Contains(fmt.Sprint(err), "secret "+source+": ") || !strings.Contains(fmt.Sprint(err), want.text) {
			t.Errorf("%s: got %q, %v (%s), want %s with %q", source, string(got), err, atoll.KindOf(err), want.kind, want.text)
		}
		if strings.Contains(fmt.Sprint(err), "hidden") {
			t.Errorf("%s: the error has a value: %v", source, err)
		}
	}
}

// A failure is an error that a test wants.
type failure struct {
	kind atoll.Kind
	text string
}

// serveVault serves what Vault serves about engines at kv (version 2, in a namespace of a standby server), old (version 1), and, for servers
// without engines that can be asked, ancient. It answers like Vault 1.14 and OpenBao 2.
func serveVault(t *testing.T) *httptest.Server {
	t.Helper()
	const v2 = `{"data": {"path": "team/kv/", "type": "kv", "options": {"version": "2"}}}`
	replies := map[string]string{
		"/v1/sys/internal/ui/mounts/team/kv/ci":      v2,
		"/v1/sys/internal/ui/mounts/team/kv/deleted": v2,
		"/v1/sys/internal/ui/mounts/team/kv/broken":  v2,
		"/v1/sys/internal/ui/mounts/team/kv":         v2,
		"/v1/sys/internal/ui/mounts/old/ci":          `{"data": {"path": "old/", "type": "kv", "options": null}}`,
		"/v1/team/kv/data/ci":                        `{"data": {"data": {"token": "hidden-2", "port": 8200, "deep": {"a": "hidden"}}, "metadata": {"version": 3, "deletion_time": ""}}}`,
		"/v1/team/kv/data/deleted":                   `{"data": {"data": null, "metadata": {"version": 3, "deletion_time": "2026-01-01T00:00:00Z"}}}`,
		"/v1/team/kv/data/broken":                    `{"data": hidden`,
		"/v1/old/ci":                                 `{"data": {"token": "hidden-1"}}`,
		"/v1/ancient/a b%2Fc":                        `{"data": {"token": "hidden-0"}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply, ok := replies[r.URL.Path]
		switch {
		case r.Method != "GET" || r.Header.Get("X-Vault-Request") != "true":
			w.WriteHeader(http.StatusBadRequest)
		case r.Header.Get("X-Vault-Token") != "the-token" || r.Header.Get("X-Vault-Namespace") != "atoll":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/v1/sealed/ci":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/standby/ci":
			http.Redirect(w, r, "/v1/old/ci", http.StatusTemporaryRedirect)
		case r.URL.Path == "/v1/loop/ci":
			http.Redirect(w, r, "/v1/loop/ci", http.StatusTemporaryRedirect)
		case r.URL.Path == "/v1/large/ci":
			_, _ = io.WriteString(w, `{"data": {"token": "hidden`+strings.Repeat("x", 2*maxVaultReply)+`"}}`)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"errors": []}`)
		default:
			_, _ = io.WriteString(w, reply)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestVault(t *testing.T) {
	server := serveVault(t)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("VAULT_ADDR", server.URL+"/")
	t.Setenv("VAULT_NAMESPACE", "atoll")
	t.Setenv("VAULT_TOKEN", "the-token\n")
	checkReads(t, map[string]string{
		"vault:team/kv/ci#token":      "hidden-2",
		"vault:/team/kv/ci#port":      "8200",
		"vault:old/ci#token":          "hidden-1",
		"vault:standby/ci#token":      "hidden-1",
		"vault:ancient/a b%2Fc#token": "hidden-0",
	}, map[string]failure{
		"vault:team/kv/ci#none":       {atoll.ErrNotExist, `no field "none"`},
		"vault:team/kv/ci#deep":       {atoll.ErrInvalid, `the field "deep" must be text`},
		"vault:team/kv/deleted#token": {atoll.ErrNotExist, "no secret at team/kv/data/deleted"},
		"vault:team/kv/broken#token":  {atoll.ErrUnavailable, "is not Vault's"},
		"vault:team/kv#token":         {atoll.ErrInvalid, "after that of the engine, team/kv"},
		"vault:old/none#token":        {atoll.ErrNotExist, "no secret at old/none"},
		"vault:sealed/ci#token":       {atoll.ErrUnavailable, "unseal it"},
		"vault:loop/ci#token":         {atoll.ErrUnavailable, "too many redirects"},
		"vault:large/ci#token":        {atoll.ErrInvalid, "is longer than"},
		"vault:old/../sys/x#token":    {atoll.ErrInvalid, "like vault:secret/ci#token"},
		"vault:old#token":             {atoll.ErrInvalid, "like vault:secret/ci#token"},
		"vault:old/ci#":               {atoll.ErrInvalid, "name the field"},
	})
	t.Setenv("VAULT_TOKEN", "another")
	checkReads(t, nil, map[string]failure{"vault:old/ci#token": {atoll.ErrDenied, "denies the token"}})
	t.Setenv("VAULT_TOKEN", "")
	checkReads(t, nil, map[string]failure{"vault:old/ci#token": {atoll.ErrDenied, "run vault login"}})
	if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), ".vault-token"), []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkReads(t, map[string]string{"vault:old/ci#token": "hidden-1"}, nil)
	server.Close()
	checkReads(t, nil, map[string]failure{"vault:old/ci#token": {atoll.ErrUnavailable, "does not answer: check VAULT_ADDR"}})
	for addr, want := range map[string]failure{
		"":                         {atoll.ErrUnavailable, "set VAULT_ADDR"},
		"vault.example":            {atoll.ErrInvalid, "must be a URL"},
		"https://me:hidden@host:1": {atoll.ErrInvalid, "must be a URL"},
	} {
		t.Setenv("VAULT_ADDR", addr)
		checkReads(t, nil, map[string]failure{"vault:old/ci#token": want})
	}
}

// The token goes out by TLS to servers that the certificate proves, and no redirect leads it out.
func TestVaultByTLS(t *testing.T) {
	plain := serveVault(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/away/ci" {
			http.Redirect(w, r, plain.URL+"/v1/old/ci", http.StatusTemporaryRedirect)
			return
		}
		plain.Config.Handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	t.Setenv("VAULT_ADDR", server.URL)
	t.Setenv("VAULT_NAMESPACE", "atoll")
	t.Setenv("VAULT_TOKEN", "the-token")
	checkReads(t, nil, map[string]failure{"vault:old/ci#token": {atoll.ErrUnavailable, "check VAULT_ADDR and VAULT_CACERT: tls:"}})
	file := filepath.Join(t.TempDir(), "ca.pem")
	t.Setenv("VAULT_CACERT", file)
	if err := os.WriteFile(file, []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkReads(t, nil, map[string]failure{"vault:old/ci#token": {atoll.ErrInvalid, "has no certificate"}})
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	checkReads(t, map[string]string{"vault:old/ci#token": "hidden-1"}, map[string]failure{"vault:away/ci#token": {atoll.ErrUnavailable, "from https to http"}})
}

func TestAWS(t *testing.T) {
	const named = "arn:aws:secretsmanager:eu-north-1:123456789012:secret:team/ci-AbCdEf"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ SecretId string }
		_ = json.NewDecoder(r.Body).Decode(&in)
		region := "eu-west-3"
		if in.SecretId == named {
			region = "eu-north-1"
		}
		signed := r.Header.Get("Authorization")
		switch {
		case r.Method != "POST" || r.Header.Get("X-Amz-Target") != "secretsmanager.GetSecretValue":
			t.Errorf("got %s %q", r.Method, r.Header)
		case !strings.HasPrefix(signed, "AWS4-HMAC-SHA256 Credential=AKIATEST/") || !strings.Contains(signed, "/"+region+"/secretsmanager/aws4_request, SignedHeaders=") || !strings.Contains(signed, ", Signature="):
			t.Errorf("%s: the signature is %q", in.SecretId, signed)
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		switch in.SecretId {
		case "plain", named:
			_, _ = io.WriteString(w, `{"SecretString": "hidden-plain"}`)
		case "json":
			_, _ = io.WriteString(w, `{"SecretString": "{\"token\": \"hidden-token\"}"}`)
		case "binary":
			_, _ = io.WriteString(w, `{"SecretBinary": "aGlkZGVu"}`)
		case "denied":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type": "AccessDeniedException", "Message": "no"}`)
		case "busy":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"__type": "InternalServiceError"}`)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type": "ResourceNotFoundException", "Message": "no"}`)
		}
	}))
	defer server.Close()
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	checkReads(t, nil, map[string]failure{"aws:plain": {atoll.ErrInvalid, "set AWS_REGION"}})
	t.Setenv("AWS_REGION", "eu-west-3")
	t.Setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", server.URL)
	checkReads(t, nil, map[string]failure{"aws:plain": {atoll.ErrDenied, "set AWS_ACCESS_KEY_ID"}})
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hidden-key")
	checkReads(t, map[string]string{
		"aws:plain": "hidden-plain", "aws:" + named: "hidden-plain", "aws:json#token": "hidden-token",
	}, map[string]failure{
		"aws:none":       {atoll.ErrNotExist, "check its name and the region"},
		"aws:binary":     {atoll.ErrInvalid, "is binary"},
		"aws:denied":     {atoll.ErrDenied, "allow secretsmanager:GetSecretValue"},
		"aws:busy":       {atoll.ErrUnavailable, "InternalServiceError"},
		"aws:plain#x":    {atoll.ErrInvalid, "not a JSON object"},
		"aws:json#other": {atoll.ErrNotExist, `no field "other"`},
		"aws:#x":         {atoll.ErrInvalid, "write it like"},
	})
	server.Close()
	checkReads(t, nil, map[string]failure{"aws:plain": {atoll.ErrUnavailable, "does not answer"}})
}

func TestDecodeWide(t *testing.T) {
	for text, want := range map[string]string{"plain": "plain", "": "", "k\x00\xe9\x00": "ké", "odd\x00\x00": "odd\x00\x00"} {
		if got := decodeWide(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
