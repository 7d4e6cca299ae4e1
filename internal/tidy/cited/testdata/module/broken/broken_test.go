package broken

import "testing"

func TestIsNotBuilt(t *testing.T) { nobody.DeclaredThis() }
