package config

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestReconcile(t *testing.T) {
	cfg, err := load(t, "reconcile:\n  failed: restart\n", []string{"ATOLL_RECONCILE_EVERY=1m", "ATOLL_SECRET=salt:hash"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := defaultReconcile()
	want.Failed, want.Every = "restart", atoll.Duration(60e9)
	if cfg.Reconcile != want {
		t.Errorf("reconcile is %+v, want %+v", cfg.Reconcile, want)
	}
	for text, want := range map[string]string{
		"reconcile: {orphans: drop}": "use one of remove, keep",
		"reconcile: {every: -1m}":    "must be positive",
		"image: {prune: -1h}":        "must be positive",
	} {
		if _, err := load(t, text, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
