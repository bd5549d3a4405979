package store_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	storetest.Benchmark(b, func(n int) store.Store {
		return store.NewSQLite(filepath.Join(dir, fmt.Sprintf("%d.db", n)))
	})
}
