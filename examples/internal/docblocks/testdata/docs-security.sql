CREATE ROLE shop_deploy;
