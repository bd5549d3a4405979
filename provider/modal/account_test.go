//go:build linux

package modal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/config"
)

// load reads a configuration.
func load(t *testing.T, text string, env []string) (*config.Config, error) {
	t.Helper()
	home := t.TempDir()
	file := filepath.Join(home, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Source{File: file, Env: append([]string{"HOME=" + home}, env...)})
}

const modalTOML = `
[work]
token_id = "ak-work"
token_secret = "as-work"
environment = "dev"
server_url = "https://modal.example.com:443"

[home]
token_id = "ak-home"
token_secret = "as-home"
active = true
`

// The account comes from the settings, from the variables of Modal's own programs, and from the
// file that they write, in that order.
func TestModalAccount(t *testing.T) {
	for name, tt := range map[string]struct {
		toml string
		env  []string
		want Options // the account; with an error, TokenID has its text
		bad  bool
	}{
		"nothing":          {},
		"the active table": {modalTOML, nil, Options{TokenID: "ak-home", TokenSecret: "as-home"}, false},
		"a table by name": {modalTOML, []string{"MODAL_PROFILE=work"}, Options{
			TokenID: "ak-work", TokenSecret: "as-work", Environment: "dev", ServerURL: "https://modal.example.com:443",
		}, false},
		"Modal's variables": {modalTOML, []string{"MODAL_TOKEN_ID=ak-env", "MODAL_TOKEN_SECRET=as-env", "MODAL_ENVIRONMENT=e", "MODAL_SERVER_URL=http://u"}, Options{
			TokenID: "ak-env", TokenSecret: "as-env", Environment: "e", ServerURL: "http://u",
		}, false},
		"ours before them": {"", []string{"MODAL_TOKEN_ID=ak-env", "MODAL_TOKEN_SECRET=as-env", "ATOLL_MODAL_TOKEN_ID=ak-ours", "ATOLL_MODAL_TOKEN_SECRET=as-ours"}, Options{
			TokenID: "ak-ours", TokenSecret: "as-ours",
		}, false},
		"no such table": {modalTOML, []string{"MODAL_PROFILE=other"}, Options{TokenID: `there is no such table`}, true},
		"no file":       {"", []string{"MODAL_PROFILE=work"}, Options{TokenID: `run modal token new`}, true},
		"no TOML":       {"[work", nil, Options{TokenID: ".modal.toml: "}, true},
		"no variable":   {"", []string{"ATOLL_MODAL_TOKEN_SECRET=env:NO_SUCH_VARIABLE"}, Options{TokenID: "NO_SUCH_VARIABLE: the variable is empty or not set"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv("USERPROFILE", home)
			if tt.toml != "" {
				if err := os.WriteFile(filepath.Join(home, ".modal.toml"), []byte(tt.toml), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg, err := load(t, "", tt.env)
			if err != nil {
				t.Fatal(err)
			}
			got, err := optionsOf(&cfg.Modal)
			if tt.bad {
				if err == nil || !strings.Contains(err.Error(), tt.want.TokenID) {
					t.Errorf("got %v, want %q in it", err, tt.want.TokenID)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.TokenID != tt.want.TokenID || got.TokenSecret != tt.want.TokenSecret || got.Environment != tt.want.Environment || got.ServerURL != tt.want.ServerURL {
				t.Errorf("got %q %q %q %q, want %q %q %q %q", got.TokenID, got.TokenSecret, got.Environment, got.ServerURL,
					tt.want.TokenID, tt.want.TokenSecret, tt.want.Environment, tt.want.ServerURL)
			}
			for _, v := range cfg.Values() {
				if strings.Contains(v.Value, "as-") {
					t.Errorf("%s shows the secret: %q", v.Key, v.Value)
				}
			}
		})
	}
}

func TestModalBuckets(t *testing.T) {
	cfg, err := load(t, "modal:\n  buckets: ['data:/mnt/data', 'docs/team/:/mnt/docs:ro']\n  bucket_secret: aws\n  bucket_endpoint: https://s3.example.com\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	o, err := optionsOf(&cfg.Modal)
	if err != nil {
		t.Fatal(err)
	}
	want := []Bucket{
		{Name: "data", Path: "/mnt/data", Endpoint: "https://s3.example.com", Secret: "aws"},
		{Name: "docs", Path: "/mnt/docs", Prefix: "team/", Endpoint: "https://s3.example.com", Secret: "aws", ReadOnly: true},
	}
	if len(o.Buckets) != 2 || o.Buckets[0] != want[0] || o.Buckets[1] != want[1] {
		t.Errorf("got %+v, want %+v", o.Buckets, want)
	}
	for _, bad := range []string{"data", "data:mnt", ":/mnt", "data/x:/mnt", "data:/"} {
		if _, err := load(t, "modal:\n  buckets: ['"+bad+"']\n", nil); err == nil || !strings.Contains(err.Error(), "modal.buckets") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
