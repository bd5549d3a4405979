// Package suggest finds the known word that is closest to a misspelt one.
package suggest

import "strings"

// Closest returns the word of known that differs from name in the fewest letters, or
// "" if that is more than a third of them. It counts one letter for a key in the wrong
// table.
func Closest(name string, known []string) string {
	best, least := "", max(1, len(name)/3)+1
	name = strings.ToLower(name)
	for _, k := range known {
		have := strings.ToLower(k)
		d := min(editDistance(name, have), 1+editDistance(lastPart(name), lastPart(have)))
		if d < least {
			best, least = k, d
		}
	}
	return best
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// editDistance returns the number of letters to insert, delete, replace or swap with
// their neighbour to turn a into b.
func editDistance(a, b string) int {
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			change := prev[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
