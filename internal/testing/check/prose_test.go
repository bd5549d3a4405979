package main

import "testing"

func TestHabits(t *testing.T) {
	found := map[string][]place{}
	functions, err := findHabits("testdata/habits.go", found)
	if err != nil {
		t.Fatal(err)
	}
	if functions != 2 {
		t.Errorf("found %d functions, want 2", functions)
	}
	for name, want := range map[string]int{"definition": 1, "relative": 2, "passive": 1, "name": 1} {
		if got := found[name]; len(got) != want {
			t.Errorf("%s: found %v, want %d places", name, got, want)
		}
	}
}
