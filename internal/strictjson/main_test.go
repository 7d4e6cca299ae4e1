package strictjson

import (
	"testing"

	"github.com/felixlog/felix/internal/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
