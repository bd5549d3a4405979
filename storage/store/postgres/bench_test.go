package postgres

import (
	"fmt"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	on := testenv.Postgres(b)
	storetest.Benchmark(b, func(n int) storetest.Store { return at(b, on.URL(schema(b, fmt.Sprint(n)))) })
}
