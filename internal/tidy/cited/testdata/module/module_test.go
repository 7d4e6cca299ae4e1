package module

import "testing"

func TestPasses(t *testing.T) { t.Log("a word of a test that passes") }

func TestFails(t *testing.T) {
	t.Run("inner", func(t *testing.T) { t.Error("the reason of the failure") })
}

func TestIsSkipped(t *testing.T) { t.Skip("not here") }

func TestIsSkippedInPart(t *testing.T) {
	t.Run("inner", func(t *testing.T) { t.Skip("not here") })
}

func FuzzSeeds(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(func(*testing.T, []byte) {})
}
