//go:build linux

package modal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// account returns a provider of an account with Secrets of these names.
func account(t *testing.T, opts Options, secrets ...string) *Provider {
	t.Helper()
	server, _ := stores(t)
	return accountAt(t, server, opts, secrets...)
}

// accountAt is like account, at that server.
func accountAt(t *testing.T, server *fakemodal.Server, opts Options, secrets ...string) *Provider {
	t.Helper()
	opts.ServerURL, opts.TokenID, opts.TokenSecret = server.URL(), server.TokenID(), server.TokenSecret()
	opts.Guest = testenv.Guest
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range secrets {
		if err := p.MakeSecret(t.Context(), name, map[string]string{"NAME": name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.open(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	return p
}

// The provider passes the options and the spec on to Modal.
func TestParams(t *testing.T) {
	p := account(t, Options{
		Ephemeral: true, Secrets: []string{"keys", "more"}, GPU: "A100", Cloud: "aws", Regions: []string{"us-east"}, Tunnels: TunnelsTLS,
		Buckets: []Bucket{
			{Name: "data", Path: "/mnt/data", Prefix: "docs/", Endpoint: "https://1.r2.cloudflarestorage.com", Secret: "bucket", ReadOnly: true},
			{Name: "plain", Path: "/mnt/plain"},
		},
	}, "keys", "more", "bucket")
	spec := &atoll.Spec{
		ID: atoll.NewID(), Env: []string{"KEY=value"}, Cmd: []string{"server"}, User: "1:2", Ports: []atoll.Port{{Port: 80, Publish: true}, {Port: 81}},
		Network:   atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"192.0.2.7/24", "198.51.100.1"}},
		Resources: atoll.Resources{Memory: 300<<20 + 1, CPUs: 1.5, GPUs: "2"}, IdleStop: atoll.Never,
	}
	got, err := p.createParams(t.Context(), spec, "name")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Secrets) != 2 || got.Secrets[0].SecretID == "" || got.Secrets[0].SecretID == got.Secrets[1].SecretID {
		t.Errorf("the secrets are %+v", got.Secrets)
	}
	data, plain := got.CloudBucketMounts["/mnt/data"], got.CloudBucketMounts["/mnt/plain"]
	if data == nil || data.BucketName != "data" || *data.KeyPrefix != "docs/" || *data.BucketEndpointURL != "https://1.r2.cloudflarestorage.com" || data.Secret.SecretID == "" || !data.ReadOnly {
		t.Errorf("the bucket is %+v", data)
	}
	if plain == nil || plain.BucketName != "plain" || plain.KeyPrefix != nil || plain.BucketEndpointURL != nil || plain.Secret != nil || plain.ReadOnly {
		t.Errorf("the plain bucket is %+v", plain)
	}
	for what, pair := range map[string][2]any{
		"memory":     {got.MemoryMiB, 301},
		"its limit":  {got.MemoryLimitMiB, 301},
		"CPU":        {got.CPU, 1.5},
		"its limit ": {got.CPULimit, 1.5},
		"GPU":        {got.GPU, "A100:2"},
		"networks":   {got.CIDRAllowlist, []string{"192.0.2.0/24", "198.51.100.1/32"}},
		"blocked":    {got.BlockNetwork, false},
		"tunnels":    {got.EncryptedPorts, []int{80}},
		"others":     {got.UnencryptedPorts, []int(nil)},
		"cloud":      {got.Cloud, "aws"},
		"regions":    {got.Regions, []string{"us-east"}},
		"life":       {got.Timeout, 24 * time.Hour},
		"name":       {got.Name, "name"},
		"volumes":    {len(got.Volumes), 1}, // the guest's
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	if strings.Contains(strings.Join(got.Command, " "), "value") {
		t.Errorf("everybody can read %q", got.Command)
	}
	var config guest.Config
	if err := json.Unmarshal([]byte(got.Env[guest.ConfigVar]), &config); err != nil {
		t.Fatal(err)
	}
	if config.ID != spec.ID || config.User != "1:2" || !slices.Equal(config.Cmd, spec.Cmd) || !slices.Contains(config.Env, "KEY=value") || config.IdleStop != 0 || config.Silence != atoll.Duration(silenceTimeout) {
		t.Errorf("the guest's configuration is %+v", config)
	}
}

// The error for a missing Secret names it.
func TestMissingSecret(t *testing.T) {
	for what, opts := range map[string]Options{
		"of sandboxes":  {Ephemeral: true, Secrets: []string{"none"}},
		"of a bucket":   {Ephemeral: true, Buckets: []Bucket{{Name: "data", Path: "/mnt/data", Secret: "none"}}},
		"of a registry": {Ephemeral: true, RegistrySecret: "none"},
	} {
		p := account(t, opts)
		_, err := p.Create(t.Context(), &atoll.Spec{})
		if atoll.KindOf(err) != atoll.ErrNotExist || !strings.Contains(err.Error(), "secret none") {
			t.Errorf("%s: %v", what, err)
		}
		if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
			t.Errorf("%s: List: %v, %v", what, all, err)
		}
	}
}

// New and Create refuse invalid options and specs before any call to Modal.
func TestOptions(t *testing.T) {
	program := func() ([]byte, error) { return nil, nil }
	for want, opts := range map[string]Options{
		"no guest":           {},
		"prefix \"Not\"":     {Guest: program, Prefix: "Not"},
		"app \"a/b\"":        {Guest: program, App: "a/b"},
		"tunnels \"udp\"":    {Guest: program, Tunnels: "udp"},
		"without a name":     {Guest: program, Buckets: []Bucket{{Path: "/mnt"}}},
		"say where":          {Guest: program, Buckets: []Bucket{{Name: "a", Path: "mnt"}}},
		"is taken":           {Guest: program, Buckets: []Bucket{{Name: "a", Path: "/work"}}},
		guestDir:             {Guest: program, Buckets: []Bucket{{Name: "a", Path: guestDir + "/a"}}},
		"another one":        {Guest: program, Buckets: []Bucket{{Name: "a", Path: "/mnt"}, {Name: "b", Path: "/mnt"}}},
		"end it in '/'":      {Guest: program, Buckets: []Bucket{{Name: "a", Path: "/mnt", Prefix: "docs"}}},
		"write it like http": {Guest: program, ServerURL: "api.modal.com"},
	} {
		if _, err := New(opts); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	p := account(t, Options{Buckets: []Bucket{{Name: "a", Path: "/mnt"}}})
	spec := &atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/mnt"}}}
	if _, err := p.Create(t.Context(), spec); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "a bucket") {
		t.Errorf("a volume where a bucket is: %v", err)
	}
	for _, target := range []string{guestDir, guestDir + "/", guestDir + "/data", "/x/.." + guestDir} {
		spec.Mounts[0].Target = target
		if _, err := p.Create(t.Context(), spec); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), "mount it elsewhere") {
			t.Errorf("a volume at %s: %v", target, err)
		}
	}
}

// A port gets a tunnel only if tunnels are allowed now, and no call waits for tunnels of a
// sandbox without published ports.
func TestNoTunnels(t *testing.T) {
	spec := &atoll.Spec{Ports: []atoll.Port{{Port: 80, Publish: true}, {Port: 81}}}
	for tunnels, want := range map[Tunnels][2]int{TunnelsOff: {0, 0}, TunnelsTLS: {1, 0}, TunnelsTCP: {0, 1}} {
		p := &Provider{opts: Options{Tunnels: tunnels}}
		var got sdk.SandboxCreateParams
		if err := p.setNetwork(spec, &got); err != nil || len(got.EncryptedPorts) != want[0] || len(got.UnencryptedPorts) != want[1] {
			t.Errorf("%s: %v and %v, %v", tunnels, got.EncryptedPorts, got.UnencryptedPorts, err)
		}
		if list, err := p.publishedPorts(t.Context(), &atoll.Spec{Ports: spec.Ports[1:]}, &instance{}); err != nil || len(list) > 0 {
			t.Errorf("%s: %v, %v", tunnels, list, err)
		}
	}
}

// A transport handles HTTP requests.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// If the upload of the guest fails, the error does not have the URL, with which anyone could
// upload data; the next attempt uploads it again.
func TestStorageFails(t *testing.T) {
	for says, meet := range map[string]transport{
		"storage answers 503 Service Unavailable: away": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Status: "503 Service Unavailable", Body: io.NopCloser(strings.NewReader("away\n"))}, nil
		},
		"storage cannot be reached: no way": func(*http.Request) (*http.Response, error) { return nil, errors.New("no way") },
	} {
		client := &http.Client{Transport: meet}
		p := account(t, Options{Ephemeral: true, http: client})
		_, err := p.Create(t.Context(), &atoll.Spec{})
		if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%v, want %q in it", err, says)
		}
		if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
			t.Errorf("List: %v, %v", all, err)
		}
		client.Transport = nil
		if _, err := p.guestVolume(t.Context()); err != nil {
			t.Errorf("the next time: %v", err)
		}
	}
}

// The first request for an image delays only other requests for the same image, and only as
// long as their contexts last.
func TestCached(t *testing.T) {
	var c cache[int]
	asked, answer := make(chan struct{}), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		v, err := c.getOrFetch(t.Context(), "slow", func() (int, error) { close(asked); <-answer; return 1, nil })
		if v != 1 || err != nil {
			t.Errorf("the value is %d, %v", v, err)
		}
	})
	<-asked
	if v, err := c.getOrFetch(t.Context(), "other", func() (int, error) { return 2, nil }); v != 2 || err != nil {
		t.Errorf("the value of another name is %d, %v", v, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.getOrFetch(ctx, "slow", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the canceled call returned %v", err)
	}
	close(answer)
	work.Wait()
	if v, err := c.getOrFetch(t.Context(), "slow", nil); v != 1 || err != nil {
		t.Errorf("it is not kept: %d, %v", v, err)
	}
	c.forgetAll()
	failed := errors.New("failed")
	if _, err := c.getOrFetch(t.Context(), "slow", func() (int, error) { return 0, failed }); err != failed {
		t.Errorf("what is forgotten is not asked for again: %v", err)
	}
}

// A sandbox with a damaged record says so, and can be removed.
func TestDamagedRecord(t *testing.T) {
	p := account(t, Options{Ephemeral: true})
	sb, err := p.Create(t.Context(), &atoll.Spec{NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.store.readLatest(t.Context(), subjectKey(kindSandbox, sb.ID()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.store.updateDict(t.Context(), false, newEntry(revisionKey(subjectKey(kindSandbox, sb.ID()), at.Number), []byte("garbage"))); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != atoll.StateFailed || !strings.Contains(st.Reason, "damaged: remove it") {
		t.Errorf("it is %+v, %v", st, err)
	}
	if at, err = p.store.readLatest(t.Context(), subjectKey(kindSandbox, sb.ID())); err != nil {
		t.Fatal(err)
	}
	if !ownsInstance(p.decodeRecord(sb.ID(), at), "sb-1", &pb.SandboxInfo{}) {
		t.Error("a life that may be its is nobody's")
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("List: %+v, %v", all, err)
	}
}
