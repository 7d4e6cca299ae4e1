module example.test/module

go 1.26.0
