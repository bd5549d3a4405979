package sqlite_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	storetest.Benchmark(b, func(n int) storetest.Store {
		return sqlite.New(filepath.Join(dir, fmt.Sprintf("%d.db", n)))
	})
}
