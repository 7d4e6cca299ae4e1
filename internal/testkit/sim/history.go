package sim

func (c *checker) judgeHistory(n *node) {}
