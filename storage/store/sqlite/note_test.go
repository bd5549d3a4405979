package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// Commits wait for the disk again after a change that does not, whether or not that succeeds.
func TestNote(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "atoll.db"))
	defer s.Close()
	failure := errors.New("as planned")
	for _, want := range []error{nil, failure} {
		err := database{s}.Note(t.Context(), func(ctx context.Context, tx sqlstore.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE secrets SET scope = scope"); err != nil {
				return err
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("Note: %v, want %v", err, want)
		}
		var mode int
		if err := s.db.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&mode); err != nil || mode != 2 {
			t.Errorf("synchronous is %d, %v; want 2", mode, err)
		}
	}
}
