//go:build linux

package supervised

import "testing"

func TestParseSubIDs(t *testing.T) {
	for text, want := range map[string][2]int{
		"":                               {0, 0},
		"other:100000:65536\n":           {0, 0},
		"me:100000:65536\n":              {100000, 65536},
		"1000:100000:65536\n":            {100000, 65536},
		"me:1:1\nme:200000:70000\n":      {200000, 70000},
		"me:x:65536\nme:0:65536\n# me\n": {0, 0},
		"me:100000:65536":                {100000, 65536},
	} {
		if first, count := parseSubIDs(text, []string{"1000", "me"}); first != want[0] || count != want[1] {
			t.Errorf("%q: %d, %d; want %v", text, first, count, want)
		}
	}
}
