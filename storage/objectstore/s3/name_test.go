package s3

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestBucketNames(t *testing.T) {
	open := func(name string) error {
		b, err := Open(t.Context(), Options{Bucket: name, Region: "us-east-1"})
		if err == nil {
			b.Close()
		}
		return err
	}
	for _, name := range []string{"my-bucket", "Old_one.2", "ab", strings.Repeat("a", 255)} {
		if err := open(name); err != nil {
			t.Errorf("%.20q of %d bytes: %v", name, len(name), err)
		}
	}
	for _, name := range []string{"", "a", "-a", "a/b", "a b", strings.Repeat("a", 256)} {
		if err := open(name); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%.20q of %d bytes: %v", name, len(name), err)
		}
	}
}
