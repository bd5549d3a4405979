package stack

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/server/api"
)

func TestLinkOptions(t *testing.T) {
	b, err := loadBuilder(t, "public_url: https://Atoll.example.com/\nports: {domain: ports.example.com, link_ttl: 1h}\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := b.LinkOptions(); o.PublicURL != "https://Atoll.example.com" || o.Domain != "ports.example.com" || o.TTL != time.Hour {
		t.Errorf("LinkOptions = %+v", o)
	}
	b, err = loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := b.LinkOptions(); o.PublicURL != "" || o.Domain != "" || o.TTL != api.DefaultLinkTTL {
		t.Errorf("LinkOptions = %+v by default", o)
	}
}

// All servers of a store have the same secret for links, and no other store has it.
func TestLinkSecret(t *testing.T) {
	secret := func(dir string) string {
		b := buildConfig(t, &config.Config{StateDir: dir})
		secret, err := b.LinkOptions().Secret(t.Context())
		if err != nil || len(secret) < 32 {
			t.Fatalf("Secret = %q, %v", secret, err)
		}
		return secret
	}
	dir := filepath.Join(t.TempDir(), "state")
	first := secret(dir)
	if again := secret(dir); again != first {
		t.Error("a second server has another secret")
	}
	if other := secret(t.TempDir()); other == first {
		t.Error("another store has the same secret")
	}
}
