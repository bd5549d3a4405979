package sqlite_test

import (
	"fmt"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
	"path/filepath"
	"testing"
)

func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	storetest.Benchmark(b, func(n int) store.Store {
		return sqlite.New(filepath.Join(dir, fmt.Sprintf("%d.db", n)))
	})
}
