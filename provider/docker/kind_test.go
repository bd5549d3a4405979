package docker

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/seed46cd37a8/atoll"
)

func TestKindOfEngineErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want atoll.Kind
	}{
		{context.DeadlineExceeded, atoll.ErrTimeout},
		{fmt.Errorf("error during connect: %w", context.DeadlineExceeded), atoll.ErrTimeout},
		{fmt.Errorf("%w: failed to create task: context deadline exceeded", errdefs.ErrInternal), atoll.ErrTimeout},
		{context.Canceled, atoll.ErrUnavailable},
		{fmt.Errorf("%w: context canceled", errdefs.ErrInternal), atoll.ErrUnavailable},
		{fmt.Errorf("%w: no such container", errdefs.ErrNotFound), atoll.ErrNotFound},
		{errors.New("else"), atoll.ErrInternal},
	} {
		if got := atoll.KindOf(new(Provider).wrapError(t.Context(), "create", "id", tt.err)); got != tt.want {
			t.Errorf("%v: kind %q, want %q", tt.err, got, tt.want)
		}
	}
}
