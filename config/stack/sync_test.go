package stack

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestStores(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		at, want string // URL of the place, or part of the error
		kind     error
	}{
		{"s3://bucket/a/b/", "s3://bucket/a/b", nil},
		{"bucket/a", "s3://bucket/a", nil},
		{"file://" + dir, "file://" + dir + "/", nil},
		{"", "name one", atoll.ErrInvalid},
		{"s3://bucket/a/../b", "path without", atoll.ErrInvalid},
		{"http://bucket", "write s3://", atoll.ErrInvalid},
	} {
		b, err := loadBuilder(t, "", []string{"AWS_REGION=eu-central-1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.Sync.Region = "eu-central-1"
		r, end, err := b.OpenStore(t.Context(), tt.at, nil)
		if tt.kind != nil {
			if err == nil || atoll.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.at, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.at, err)
			continue
		}
		if got := r.String(); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.at, got, tt.want)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}
