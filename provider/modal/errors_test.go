//go:build linux

package modal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

// A call whose context ends says so, also where the service has seen it a moment before.
func TestFailed(t *testing.T) {
	p := &Provider{}
	for _, tt := range []struct {
		what string
		left time.Duration
		code codes.Code
		want error
	}{
		{"it is over", 0, codes.Unavailable, context.DeadlineExceeded},
		{"the service was first", overSoon / 2, codes.Canceled, context.DeadlineExceeded},
		{"the service was first, and says why", overSoon / 2, codes.DeadlineExceeded, context.DeadlineExceeded},
		{"it fails just before", overSoon / 2, codes.ResourceExhausted, atoll.ErrExhausted},
		{"the service has its own limits", time.Hour, codes.DeadlineExceeded, atoll.ErrUnavailable},
		{"the service has given up", time.Hour, codes.Canceled, atoll.ErrUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tt.left)
			defer cancel()
			if err := p.failed(ctx, "op", "id", status.Error(tt.code, "says so")); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.what, err, tt.want)
			}
		})
	}
}
