package cut

import (
	"fmt"
	"os"
	"testing"
)

func TestIsCutShort(t *testing.T) {
	fmt.Println("last words")
	os.Exit(1)
}
