//go:build linux

package modal_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// Without a token, with a wrong one, or without a connection to Modal, calls and the probe fail
// at once, in one sentence that says what to do.
func TestCredentials(t *testing.T) {
	server := need(t).server
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	l.Close()
	for _, tt := range []struct {
		what            string
		url, id, secret string
		kind            atoll.Kind
		says            string
		probe, remedy   string
		asked           bool // a call reached Modal
	}{
		{"no token", server.URL(), "", "", atoll.ErrDenied, "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET (modal.token_id, modal.token_secret), or run modal token new", "there is no token", "modal token new", false},
		{"half a token", server.URL(), "ak-test", "", atoll.ErrDenied, "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET", "there is no token", "modal token new", false},
		{"a wrong token", server.URL(), "ak-test", "as-wrong", atoll.ErrDenied, "Token validation failed: check that MODAL_TOKEN_ID and MODAL_TOKEN_SECRET belong to one token; modal token new makes one", "rejects the token", "modal token new", true},
		{"what is no token", server.URL(), "test", "as-test", atoll.ErrDenied, "Token ID is malformed: check that MODAL_TOKEN_ID", "rejects the token", "modal token new", true},
		{"nobody", nobody, "ak-test", "as-test", atoll.ErrUnavailable, "connection refused", "cannot be reached", "firewall", false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := open(t, "busybox:1", func(o *modal.Options) { o.ServerURL, o.TokenID, o.TokenSecret = tt.url, tt.id, tt.secret })
			defer p.Close()
			before := server.Calls("AuthTokenGet")
			begin := time.Now()
			for name, call := range map[string]func() error{
				"Create":  func() error { _, err := p.Create(t.Context(), &atoll.Spec{}); return err },
				"Get":     func() error { _, err := p.Get(t.Context(), atoll.NewID()); return err },
				"List":    func() error { _, err := p.List(t.Context(), atoll.Filter{}); return err },
				"Volumes": func() error { _, err := p.Volumes(t.Context(), ""); return err },
				"Watch": func() error {
					for _, err := range p.Watch(t.Context()) {
						return err
					}
					return nil
				},
			} {
				err := call()
				if atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "rpc error") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %v (%s), want %s with %q", name, err, atoll.KindOf(err), tt.kind, tt.says)
				}
			}
			probe := p.Probe(t.Context())
			if probe.OK || !strings.Contains(probe.Reason, tt.probe) || !strings.Contains(probe.Fix, tt.remedy) || strings.Contains(probe.Reason, "rpc error") || !strings.Contains(strings.Join(probe.Notes, "\n"), "bills") {
				t.Errorf("the probe says %+v", probe)
			}
			if took := time.Since(begin); took > testenv.Scale(20*time.Second) {
				t.Errorf("the error took %v", took)
			}
			if asked := server.Calls("AuthTokenGet") > before; asked != tt.asked {
				t.Errorf("Modal was asked: %v", asked)
			}
		})
	}
}

// A successful probe reports the consequences of the settings, and creates nothing.
func TestProbe(t *testing.T) {
	server := need(t).server
	p := open(t, "busybox:1", func(o *modal.Options) { o.Ephemeral, o.Tunnels = true, modal.TunnelsTLS })
	defer p.Close()
	before := server.Calls("SandboxCreate")
	probe := p.Probe(t.Context())
	notes := strings.Join(probe.Notes, "\n")
	for _, word := range []string{"authenticated; 0 of its sandboxes run", "bills", "modal.ephemeral", "published ports are public"} {
		if !strings.Contains(notes, word) {
			t.Errorf("the notes lack %q: %s", word, notes)
		}
	}
	if !probe.OK || server.Calls("SandboxCreate") != before {
		t.Errorf("it is %+v", probe)
	}
}

// placeOf returns the Place of the provider with opts.
func placeOf(t *testing.T, opts modal.Options) (string, error) {
	t.Helper()
	p, err := modal.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return p.Place(t.Context())
}

// All clients of one environment, with any token, get the same Place.
func TestPlace(t *testing.T) {
	opts := modal.Options{ServerURL: need(t).server.URL(), TokenID: "ak-test", TokenSecret: "as-test", Environment: "dev", Prefix: "agents", Guest: testenv.Guest}
	place, err := placeOf(t, opts)
	if want := "modal:atoll-test/dev/agents"; place != want || err != nil {
		t.Errorf("got %q, %v, want %q", place, err, want)
	}
	opts.Environment = "" // the default one, which has a name
	place, err = placeOf(t, opts)
	if want := "modal:atoll-test/main/agents"; place != want || err != nil {
		t.Errorf("got %q, %v, want %q", place, err, want)
	}
	opts.TokenSecret = "as-wrong"
	if _, err := placeOf(t, opts); atoll.KindOf(err) != atoll.ErrDenied {
		t.Errorf("with a wrong token: %v", err)
	}
}

// All calls are for the environment of the options, whatever the SDK's own variables and file
// say.
func TestOneEnvironment(t *testing.T) {
	l := need(t)
	image := busybox(t)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("MODAL_ENVIRONMENT", "elsewhere")
	toml := "[work]\nactive = true\nenvironment = \"works\"\n"
	if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), ".modal.toml"), []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "main", "dev": "dev"} {
		server, err := fakemodal.New(fakemodal.Options{Backend: l.backend, Dir: t.TempDir(), TokenID: "ak-test", TokenSecret: "as-test"})
		if err != nil {
			t.Fatal(err)
		}
		p := open(t, image, func(o *modal.Options) { o.ServerURL, o.Environment = server.URL(), name })
		sb := created(t, p, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}}})
		if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) != 1 {
			t.Errorf("List: %+v, %v", all, err)
		}
		if err := errors.Join(sb.Remove(t.Context(), atoll.RemoveVolumes()), p.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		if got := server.Environments(); !slices.Equal(got, []string{want}) {
			t.Errorf("environment %q: calls are for %q, want %q", name, got, want)
		}
	}
}

// A program without a home can use an account.
func TestNoHome(t *testing.T) {
	need(t)
	t.Setenv("HOME", "")
	p := open(t, "busybox:1")
	defer p.Close()
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
		t.Error(err)
	}
}
